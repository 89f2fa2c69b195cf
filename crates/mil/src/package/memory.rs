//! The memory that a model file takes once it is decoded, counted from its bytes before it is.
//!
//! A message of two bytes can take hundreds: it is a struct in a list that grows, or a node of a
//! map. So the walk follows the fields that [`proto`](super::proto) knows and counts what decoding
//! allocates for each. Where it cannot tell, it counts too much: a message that comes again is
//! merged by the decoder, and fields of groups, which the decoder skips, count as those of the
//! message around them. It ends where the bytes are no message, as the decoder does.

use super::proto::*;

/// How the decoder holds a field that takes memory beside the struct of its message.
#[derive(Clone, Copy)]
enum Field {
    /// A message that is a part of the struct.
    One(Kind),
    /// A message with memory of its own.
    Boxed(Kind),
    /// A list of messages.
    Many(Kind),
    /// A map from texts to messages.
    Map(Kind),
    /// A map from texts to texts.
    MapOfTexts,
    /// A text, or bytes.
    Text,
    /// A list of texts.
    Texts,
    /// A list of numbers, each of so many bytes in memory.
    Numbers(usize),
}

/// The messages with fields that take memory.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Model,
    Description,
    FunctionDescription,
    Metadata,
    Feature,
    FeatureType,
    StateFeature,
    Image,
    Sizes,
    Array,
    Shapes,
    Shape,
    Ranges,
    Program,
    Function,
    Block,
    Operation,
    Argument,
    Binding,
    Named,
    ValueType,
    Tensor,
    List,
    Tuple,
    Dictionary,
    StateType,
    Value,
    BlobFile,
    Immediate,
    Values,
    Pairs,
    Pair,
    TensorValue,
    Floats,
    Ints,
    Bools,
    Strings,
    LongInts,
    Doubles,
    Packed,
    /// A message without such fields.
    Plain(usize),
}

impl Kind {
    /// Bytes of the struct.
    fn struct_bytes(self) -> usize {
        match self {
            Self::Model => size_of::<Model>(),
            Self::Description => size_of::<ModelDescription>(),
            Self::FunctionDescription => size_of::<FunctionDescription>(),
            Self::Metadata => size_of::<Metadata>(),
            Self::Feature => size_of::<FeatureDescription>(),
            Self::FeatureType => size_of::<FeatureType>(),
            Self::StateFeature => size_of::<StateFeatureType>(),
            Self::Image => size_of::<ImageFeatureType>(),
            Self::Sizes => size_of::<EnumeratedImageSizes>(),
            Self::Array => size_of::<ArrayFeatureType>(),
            Self::Shapes => size_of::<array_feature_type::EnumeratedShapes>(),
            Self::Shape => size_of::<array_feature_type::Shape>(),
            Self::Ranges => size_of::<array_feature_type::ShapeRange>(),
            Self::Program => size_of::<Program>(),
            Self::Function => size_of::<Function>(),
            Self::Block => size_of::<Block>(),
            Self::Operation => size_of::<Operation>(),
            Self::Argument => size_of::<Argument>(),
            Self::Binding => size_of::<Binding>(),
            Self::Named => size_of::<NamedValueType>(),
            Self::ValueType => size_of::<ValueType>(),
            Self::Tensor => size_of::<TensorType>(),
            Self::List => size_of::<ListType>(),
            Self::Tuple => size_of::<TupleType>(),
            Self::Dictionary => size_of::<DictionaryType>(),
            Self::StateType => size_of::<StateType>(),
            Self::Value => size_of::<Value>(),
            Self::BlobFile => size_of::<value::BlobFileValue>(),
            Self::Immediate => size_of::<ImmediateValue>(),
            Self::Values => size_of::<Values>(),
            Self::Pairs => size_of::<DictionaryValue>(),
            Self::Pair => size_of::<KeyValuePair>(),
            Self::TensorValue => size_of::<TensorValue>(),
            Self::Floats
            | Self::Ints
            | Self::Bools
            | Self::Strings
            | Self::LongInts
            | Self::Doubles
            | Self::Packed => size_of::<Vec<u8>>(),
            Self::Plain(n_bytes) => n_bytes,
        }
    }

    /// The field of a tag, if it takes memory of its own.
    fn field(self, tag: u64) -> Option<Field> {
        use Field::*;
        Some(match (self, tag) {
            (Self::Model, 2) => One(Self::Description),
            (Self::Model, 502) => One(Self::Program),
            (Self::Description, 1 | 10 | 13) => Many(Self::Feature),
            (Self::Description, 11 | 12 | 21) => Text,
            (Self::Description, 20) => Many(Self::FunctionDescription),
            (Self::Description, 100) => One(Self::Metadata),
            (Self::FunctionDescription, 1 | 4 | 5) => Text,
            (Self::FunctionDescription, 2 | 3 | 6) => Many(Self::Feature),
            (Self::Metadata, 1..=4) => Text,
            (Self::Metadata, 100) => MapOfTexts,
            (Self::Feature, 1 | 2) => Text,
            (Self::Feature, 3) => One(Self::FeatureType),
            (Self::FeatureType, 4) => One(Self::Image),
            (Self::FeatureType, 5) => One(Self::Array),
            (Self::FeatureType, 8) => One(Self::StateFeature),
            (Self::StateFeature, 1) => One(Self::Array),
            (Self::Image, 21) => One(Self::Sizes),
            (Self::Sizes, 1) => Many(Self::Plain(size_of::<ImageSize>())),
            (Self::Array, 1) | (Self::Shape, 1) => Numbers(8),
            (Self::Array, 21) => One(Self::Shapes),
            (Self::Array, 31) => One(Self::Ranges),
            (Self::Shapes, 1) => Many(Self::Shape),
            (Self::Ranges, 1) => Many(Self::Plain(size_of::<SizeRange>())),
            (Self::Program, 2) => Map(Self::Function),
            (Self::Program | Self::Function, 4) | (Self::Operation, 5) => Map(Self::Value),
            (Self::Function | Self::Block, 1) => Many(Self::Named),
            (Self::Function, 2) => Text,
            (Self::Function, 3) => Map(Self::Block),
            (Self::Block, 2) => Texts,
            (Self::Block, 3) => Many(Self::Operation),
            (Self::Operation, 1) => Text,
            (Self::Operation, 2) => Map(Self::Argument),
            (Self::Operation, 3) => Many(Self::Named),
            (Self::Operation, 4) => Many(Self::Block),
            (Self::Argument, 1) => Many(Self::Binding),
            (Self::Binding | Self::Named, 1) => Text,
            (Self::Binding, 2) => One(Self::Value),
            (Self::Named, 2) | (Self::Value, 2) => One(Self::ValueType),
            (Self::ValueType, 1) => One(Self::Tensor),
            (Self::ValueType, 2) => Boxed(Self::List),
            (Self::ValueType, 3) => One(Self::Tuple),
            (Self::ValueType, 4) => Boxed(Self::Dictionary),
            (Self::ValueType, 5) => Boxed(Self::StateType),
            (Self::Tensor, 3) => Many(Self::Plain(size_of::<Dimension>())),
            (Self::List | Self::StateType, 1) | (Self::Dictionary, 1 | 2) => One(Self::ValueType),
            (Self::Tuple, 1) => Many(Self::ValueType),
            (Self::Value, 3) => One(Self::Immediate),
            (Self::Value, 5) => One(Self::BlobFile),
            (Self::BlobFile, 1) => Text,
            (Self::Immediate, 1) => One(Self::TensorValue),
            (Self::Immediate, 2 | 3) => One(Self::Values),
            (Self::Immediate, 4) => One(Self::Pairs),
            (Self::Values, 1) => Many(Self::Value),
            (Self::Pairs, 1) => Many(Self::Pair),
            (Self::Pair, 1 | 2) => One(Self::Value),
            (Self::TensorValue, 1) => One(Self::Floats),
            (Self::TensorValue, 2) => One(Self::Ints),
            (Self::TensorValue, 3) => One(Self::Bools),
            (Self::TensorValue, 4) => One(Self::Strings),
            (Self::TensorValue, 5) => One(Self::LongInts),
            (Self::TensorValue, 6) => One(Self::Doubles),
            (Self::TensorValue, 7) => One(Self::Packed),
            (Self::Floats | Self::Ints, 1) => Numbers(4),
            (Self::Bools, 1) => Numbers(1),
            (Self::LongInts | Self::Doubles, 1) => Numbers(8),
            (Self::Strings, 1) => Texts,
            (Self::Packed, 1) => Text,
            _ => return None,
        })
    }
}

/// The decoder refuses messages that are nested deeper.
const MAX_DEPTH: usize = 100;
/// What the allocator adds to a piece of memory.
const OF_PIECE: usize = 32;
/// A list that grows has room for twice its elements.
const GROWTH: usize = 2;

/// At least as many bytes as decoding a message of this kind allocates.
pub(super) fn decoded_bytes(kind: Kind, message: &[u8]) -> usize {
    kind.struct_bytes() + beside(kind, message, 0)
}

/// Bytes beside the struct of a message.
fn beside(kind: Kind, message: &[u8], depth: usize) -> usize {
    let (mut sum, mut rest) = (0usize, message);
    let mut has_entries = [false; 8];
    while let Some((tag, wire)) = next(&mut rest) {
        let Some(field) = kind.field(tag) else {
            continue;
        };
        // Maps have tags below 8, but for one.
        let is_first = !std::mem::replace(&mut has_entries[tag as usize % 8], true);
        let n_bytes = match (wire, field) {
            (Wire::Number, Field::Numbers(n_bytes)) => GROWTH * n_bytes + OF_PIECE,
            (Wire::Bytes(bytes), field) => of_field(field, bytes, is_first, depth),
            _ => 0,
        };
        sum = sum.saturating_add(n_bytes);
    }
    sum
}

fn of_field(field: Field, bytes: &[u8], is_first: bool, depth: usize) -> usize {
    let inside = |kind: Kind| match depth < MAX_DEPTH {
        true => beside(kind, bytes, depth + 1),
        false => 0,
    };
    let of_text = match bytes.len() {
        0 => 0,
        n => n + OF_PIECE,
    };
    // Room for four elements, which a list has at first.
    let of_list = if is_first { 4 } else { GROWTH };
    match field {
        Field::One(kind) => inside(kind),
        Field::Boxed(kind) => kind.struct_bytes() + OF_PIECE + inside(kind),
        Field::Many(kind) => of_list * kind.struct_bytes() + OF_PIECE + inside(kind),
        Field::Map(kind) => of_entry(is_first, kind.struct_bytes()) + of_value(kind, bytes, depth),
        // The name and the text together are as long as the entry.
        Field::MapOfTexts => of_entry(is_first, size_of::<String>()) + 2 * OF_PIECE + bytes.len(),
        Field::Text => of_text,
        Field::Texts => of_list * size_of::<String>() + of_text,
        Field::Numbers(n_bytes) => {
            // Numbers of a fixed length have the same in memory, others end in a byte below 128.
            let n_short = bytes.iter().filter(|byte| **byte < 128).count();
            GROWTH * (n_short * n_bytes).max(bytes.len()) + OF_PIECE
        }
    }
}

/// An entry of a map: its share of a node, which has room for eleven and may have five; the first
/// entry has a node for itself.
fn of_entry(is_first: bool, value_bytes: usize) -> usize {
    let of_node = 12 * (size_of::<String>() + value_bytes) + OF_PIECE;
    if is_first {
        of_node
    } else {
        of_node.div_ceil(5)
    }
}

/// The name and what is beside the struct of the value of an entry of a map.
fn of_value(kind: Kind, entry: &[u8], depth: usize) -> usize {
    let (mut sum, mut rest) = (0usize, entry);
    while let Some((tag, wire)) = next(&mut rest) {
        let n_bytes = match (tag, wire) {
            (1, Wire::Bytes(name)) => name.len() + OF_PIECE,
            (2, Wire::Bytes(value)) if depth < MAX_DEPTH => beside(kind, value, depth + 1),
            _ => 0,
        };
        sum = sum.saturating_add(n_bytes);
    }
    sum
}

/// The content of a field.
enum Wire<'a> {
    Number,
    Bytes(&'a [u8]),
}

/// The tag and the content of the next field; `None` where there is none.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u64, Wire<'a>)> {
    let key = varint(rest)?;
    let n_skipped = match key & 7 {
        0 => {
            varint(rest)?;
            0
        }
        1 => 8,
        2 => {
            let n = usize::try_from(varint(rest)?).ok()?;
            let bytes = rest.split_off(..n)?;
            return Some((key >> 3, Wire::Bytes(bytes)));
        }
        // A group begins or ends.
        3 | 4 => 0,
        5 => 4,
        _ => return None,
    };
    rest.split_off(..n_skipped)?;
    Some((key >> 3, Wire::Number))
}

/// A number of up to ten bytes.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = rest.split_off_first()?;
        value |= u64::from(byte & 127).checked_shl(shift).unwrap_or(0);
        if *byte < 128 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// A field of bytes.
    fn field(tag: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        prost::encoding::bytes::encode(tag, &bytes.to_vec(), &mut out);
        out
    }

    /// Messages of two bytes, in lists of the same message.
    #[test]
    fn small_messages_count_as_what_they_become() {
        const N: usize = 10_000;
        let model = |block: Vec<u8>| {
            let entry = |value: &[u8]| [field(1, b"CoreML7"), field(2, value)].concat();
            let function = field(3, &entry(&block));
            field(502, &field(2, &entry(&function)))
        };
        let decode = |bytes: &[u8]| Model::decode(bytes).unwrap();
        let block_of = |model: Model| {
            let functions = model.ml_program.unwrap().functions;
            let function = functions.into_values().next().unwrap();
            function.block_specializations.into_values().next().unwrap()
        };
        let inputs = field(2, &field(1, b"").repeat(N));
        let n_bytes = decode(&inputs).description.unwrap().input.capacity();
        let ops = model(field(3, b"").repeat(N));
        let outputs = model(field(3, &field(3, b"").repeat(N)));
        let blocks = model(field(3, &field(4, b"").repeat(N)));
        let op_of = |bytes: &[u8]| block_of(decode(bytes)).operations.remove(0);
        for (bytes, due) in [
            (&inputs, n_bytes * size_of::<FeatureDescription>()),
            (
                &ops,
                block_of(decode(&ops)).operations.capacity() * size_of::<Operation>(),
            ),
            (
                &outputs,
                op_of(&outputs).outputs.capacity() * size_of::<NamedValueType>(),
            ),
            (
                &blocks,
                op_of(&blocks).blocks.capacity() * size_of::<Block>(),
            ),
        ] {
            assert!(due >= 20 * bytes.len());
            let found = decoded_bytes(Kind::Model, bytes);
            assert!(found >= due, "{found} >= {due}");
            assert!(found <= 3 * due, "{found}, {due}");
            // What is cut was decoded up to there.
            assert!(decoded_bytes(Kind::Model, &bytes[..bytes.len() - 1]) < due);
        }
    }

    /// Numbers are packed or not, and long or short.
    #[test]
    fn numbers_count_as_what_they_become() {
        let ints = |packed: Vec<u8>| field(3, &field(1, &field(5, &field(1, &packed))));
        for (bytes, n) in [
            (ints(vec![0; 1000]), 1000),
            (ints([0x80, 1].repeat(500)), 500),
            (field(3, &field(1, &field(5, &[8, 1].repeat(700)))), 700),
            // A group, which is skipped, and a number of each fixed length.
            (
                [
                    &[0x7b, 0x7c, 0x79][..],
                    &[0; 8],
                    &[0x7d],
                    &[0; 4],
                    &ints(vec![1; 300]),
                ]
                .concat(),
                300,
            ),
        ] {
            let value = Value::decode(&bytes[..]).unwrap();
            let text = format!("{value:?}");
            assert!(text.contains("LongInts"), "{text}");
            let found = decoded_bytes(Kind::Value, &bytes);
            assert!(found >= 8 * n && found <= 8 * n * 8, "{found}, {n}");
        }
    }

    /// The fields are those of the messages: texts, lists and maps of all of them count.
    #[test]
    fn texts_and_maps_count() {
        let long = "x".repeat(1 << 16);
        let value = Value {
            r#type: None,
            value: Some(value::Value::BlobFile(value::BlobFileValue {
                file_name: long.clone(),
                offset: 1,
            })),
        };
        let entries = |n: usize| (0..n).map(|i| (format!("{i}"), value.clone())).collect();
        let op = Operation {
            r#type: long.clone(),
            attributes: entries(20),
            ..Operation::default()
        };
        let metadata = Metadata {
            license: long.clone(),
            user_defined: [(long.clone(), long.clone())].into(),
            ..Metadata::default()
        };
        for (kind, bytes, n_long) in [
            (Kind::Operation, op.encode_to_vec(), 21),
            (Kind::Metadata, metadata.encode_to_vec(), 3),
        ] {
            let found = decoded_bytes(kind, &bytes);
            assert!((n_long..=n_long + 1).contains(&(found >> 16)), "{found}");
        }
    }
}

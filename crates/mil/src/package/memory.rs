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
            (Wire::Number, Field::Numbers(n_bytes)) => GROWTH * n_bytes + of_first(is_first),
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
        Field::Many(kind) => of_list * kind.struct_bytes() + of_first(is_first) + inside(kind),
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

/// What the first element of a list takes beside its room.
fn of_first(is_first: bool) -> usize {
    if is_first { OF_PIECE } else { 0 }
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

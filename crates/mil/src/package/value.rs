//! Converts types and literals to and from protobuf messages.

use super::blob::{self, Plan};
use super::proto::{self, dimension, immediate_value, tensor_value, value, value_type};
use crate::data::Data;
use crate::literal::Literal;
use crate::opset::Opset;
use crate::types::{DType, Dim, MAX_RANK, Symbol, TensorType, Type};

/// Path of the weight file in values.
pub(super) const WEIGHT_PATH: &str = "@model_path/weights/weight.bin";
/// Constants with fewer elements are stored inline. Source: coremltools' writer.
const MIN_BLOB_ELEMENTS: usize = 10;
/// Maximum nesting of types and literals.
const MAX_DEPTH: usize = 32;

/// Apple's numbers of element types.
const CODES: &[(DType, i32)] = &[
    (DType::Bool, 1),
    (DType::String, 2),
    (DType::Fp16, 10),
    (DType::Fp32, 11),
    (DType::Fp64, 12),
    (DType::Bf16, 13),
    (DType::Int8, 21),
    (DType::Int16, 22),
    (DType::Int32, 23),
    (DType::Int64, 24),
    (DType::Int4, 25),
    (DType::Uint8, 31),
    (DType::Uint16, 32),
    (DType::Uint32, 33),
    (DType::Uint64, 34),
    (DType::Uint4, 35),
    (DType::Uint2, 36),
    (DType::Uint1, 37),
    (DType::Uint6, 38),
    (DType::Uint3, 39),
    (DType::Fp8E4M3, 40),
    (DType::Fp8E5M2, 41),
];

/// Looks up the constant at a path and offset of a weight file.
pub(super) type Resolve<'a> = &'a mut dyn FnMut(&str, u64, &TensorType) -> Result<Data, String>;

pub(super) fn type_to_proto(ty: &Type) -> proto::ValueType {
    let boxed = |t: &Type| Some(type_to_proto(t));
    let ty = match ty {
        Type::Tensor(t) => value_type::Type::Tensor(tensor_to_proto(t)),
        Type::State(t) => {
            let wrapped_type = boxed(&Type::Tensor(t.clone()));
            value_type::Type::State(Box::new(proto::StateType { wrapped_type }))
        }
        Type::List(t, len) => {
            let length = Some(dim_to_proto(len.map_or(Dim::Symbol(Symbol(0)), Dim::Known)));
            value_type::Type::List(Box::new(proto::ListType {
                r#type: boxed(t),
                length,
            }))
        }
        Type::Tuple(types) => value_type::Type::Tuple(proto::TupleType {
            types: types.iter().map(type_to_proto).collect(),
        }),
        Type::Dict(k, v) => value_type::Type::Dictionary(Box::new(proto::DictionaryType {
            key_type: boxed(k),
            value_type: boxed(v),
        })),
    };
    proto::ValueType { r#type: Some(ty) }
}

fn tensor_to_proto(ty: &TensorType) -> proto::TensorType {
    let data_type = CODES
        .iter()
        .find(|(d, _)| *d == ty.dtype)
        .map_or(0, |(_, code)| *code);
    let dimensions = ty.shape.iter().map(|d| dim_to_proto(*d)).collect();
    proto::TensorType {
        data_type,
        rank: ty.rank() as i64,
        dimensions,
    }
}

fn dim_to_proto(dim: Dim) -> proto::Dimension {
    let dimension = match dim {
        Dim::Known(size) => {
            dimension::Dimension::Constant(dimension::Constant { size: size as u64 })
        }
        Dim::Symbol(_) => dimension::Dimension::Unknown(dimension::Unknown { variadic: false }),
    };
    proto::Dimension {
        dimension: Some(dimension),
    }
}

/// Decodes a type; `symbol` makes a symbol for each unknown dimension.
pub(super) fn type_from_proto(
    ty: Option<&proto::ValueType>,
    symbol: &mut dyn FnMut() -> Symbol,
) -> Result<Type, String> {
    nested_type(ty, symbol, 0)
}

fn nested_type(
    ty: Option<&proto::ValueType>,
    symbol: &mut dyn FnMut() -> Symbol,
    depth: usize,
) -> Result<Type, String> {
    if depth > MAX_DEPTH {
        return Err(format!("a type is nested deeper than {MAX_DEPTH} levels"));
    }
    let mut inner = |ty: &Option<proto::ValueType>| nested_type(ty.as_ref(), symbol, depth + 1);
    Ok(
        match ty
            .and_then(|t| t.r#type.as_ref())
            .ok_or("a type is missing")?
        {
            value_type::Type::Tensor(t) => Type::Tensor(tensor_from_proto(t, symbol)?),
            value_type::Type::State(s) => match inner(&s.wrapped_type)? {
                Type::Tensor(t) => Type::State(t),
                other => return Err(format!("expected a tensor in a state, found {other}")),
            },
            value_type::Type::List(l) => {
                let element = inner(&l.r#type)?;
                let len = match l.length {
                    Some(length) => dim_from_proto(length, symbol)?.known(),
                    None => None,
                };
                Type::List(Box::new(element), len)
            }
            value_type::Type::Tuple(t) => {
                let types = t
                    .types
                    .iter()
                    .map(|t| nested_type(Some(t), symbol, depth + 1));
                Type::Tuple(types.collect::<Result<_, _>>()?)
            }
            value_type::Type::Dictionary(d) => {
                let key = inner(&d.key_type)?;
                Type::Dict(Box::new(key), Box::new(inner(&d.value_type)?))
            }
        },
    )
}

fn tensor_from_proto(
    ty: &proto::TensorType,
    symbol: &mut dyn FnMut() -> Symbol,
) -> Result<TensorType, String> {
    let dtype = CODES
        .iter()
        .find(|(_, code)| *code == ty.data_type)
        .map(|(d, _)| *d);
    let dtype = dtype.ok_or_else(|| format!("unknown element type {}", ty.data_type))?;
    if usize::try_from(ty.rank) != Ok(ty.dimensions.len()) {
        return Err(format!(
            "expected {} dimensions of a tensor, found {}",
            ty.rank,
            ty.dimensions.len()
        ));
    }
    if ty.dimensions.len() > MAX_RANK {
        return Err(format!(
            "expected rank {MAX_RANK} or less, found rank {}",
            ty.dimensions.len()
        ));
    }
    let shape = ty
        .dimensions
        .iter()
        .map(|d| dim_from_proto(*d, symbol))
        .collect::<Result<_, _>>()?;
    Ok(TensorType { dtype, shape })
}

fn dim_from_proto(
    dim: proto::Dimension,
    symbol: &mut dyn FnMut() -> Symbol,
) -> Result<Dim, String> {
    match dim.dimension {
        Some(dimension::Dimension::Constant(c)) => usize::try_from(c.size)
            .map(Dim::Known)
            .map_err(|_| format!("a dimension of {} elements is too large", c.size)),
        Some(dimension::Dimension::Unknown(u)) if !u.variadic => Ok(Dim::Symbol(symbol())),
        Some(dimension::Dimension::Unknown(_)) => Err("expected a tensor of known rank".to_owned()),
        None => Err("a dimension has no size".to_owned()),
    }
}

/// Whether a constant goes to the weight file in a program of this opset.
pub(super) fn is_blob(ty: &TensorType, opset: Opset) -> bool {
    let (rank, n) = (ty.rank(), ty.n_elements().unwrap_or(0));
    let early = matches!(
        ty.dtype,
        DType::Fp16 | DType::Fp32 | DType::Uint8 | DType::Int8
    );
    let stored = early || opset >= Opset::CoreMl8 && blob::code(ty.dtype).is_some();
    // An inline fp16 constant has made Core ML abort (rustnn's tests) unless it is a scalar.
    stored && rank > 0 && n > 0 && (n >= MIN_BLOB_ELEMENTS || ty.dtype == DType::Fp16)
}

/// Encodes a literal. A large tensor is added to `plan`.
pub(super) fn literal_to_proto(literal: &Literal, opset: Opset, plan: &mut Plan) -> proto::Value {
    let mut items = |items: &[Literal]| proto::Values {
        values: items
            .iter()
            .map(|item| literal_to_proto(item, opset, plan))
            .collect(),
    };
    let immediate = match literal {
        Literal::Tensor(ty, data) if is_blob(ty, opset) => {
            let blob = value::BlobFileValue {
                file_name: WEIGHT_PATH.to_owned(),
                offset: plan.place(ty, data),
            };
            let r#type = Some(type_to_proto(&Type::Tensor(ty.clone())));
            return proto::Value {
                r#type,
                value: Some(value::Value::BlobFile(blob)),
            };
        }
        Literal::Tensor(ty, data) => immediate_value::Value::Tensor(tensor_value(ty.dtype, data)),
        Literal::String(s) => {
            let strings = tensor_value::Value::Strings(tensor_value::Strings {
                values: vec![s.clone()],
            });
            immediate_value::Value::Tensor(proto::TensorValue {
                value: Some(strings),
            })
        }
        Literal::List(_, list) => immediate_value::Value::List(items(list)),
        Literal::Tuple(tuple) => immediate_value::Value::Tuple(items(tuple)),
        Literal::Dict(_, _, pairs) => {
            let pair = |(k, v): &(Literal, Literal)| proto::KeyValuePair {
                key: Some(literal_to_proto(k, opset, plan)),
                value: Some(literal_to_proto(v, opset, plan)),
            };
            immediate_value::Value::Dictionary(proto::DictionaryValue {
                values: pairs.iter().map(pair).collect(),
            })
        }
    };
    let immediate = value::Value::Immediate(proto::ImmediateValue {
        value: Some(immediate),
    });
    proto::Value {
        r#type: Some(type_to_proto(&literal.ty())),
        value: Some(immediate),
    }
}

fn chunks<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|c| f(*c)).collect()
}

/// Encodes elements in the field that Core ML reads for their type.
fn tensor_value(dtype: DType, data: &Data) -> proto::TensorValue {
    use tensor_value::{Bools, Doubles, Floats, Ints, LongInts, Packed, Value};
    let bytes = data.to_vec();
    let ints = |values| Value::Ints(Ints { values });
    let value = match dtype {
        DType::Bool => Value::Bools(Bools {
            values: bytes.iter().map(|b| *b != 0).collect(),
        }),
        DType::Fp32 => Value::Floats(Floats {
            values: chunks(&bytes, f32::from_le_bytes),
        }),
        DType::Fp64 => Value::Doubles(Doubles {
            values: chunks(&bytes, f64::from_le_bytes),
        }),
        DType::Int16 => ints(chunks(&bytes, |b| i16::from_le_bytes(b).into())),
        DType::Uint16 => ints(chunks(&bytes, |b| u16::from_le_bytes(b).into())),
        DType::Int32 => ints(chunks(&bytes, i32::from_le_bytes)),
        DType::Int64 | DType::Uint64 => Value::LongInts(LongInts {
            values: chunks(&bytes, i64::from_le_bytes),
        }),
        _ => Value::Bytes(Packed { values: bytes }),
    };
    proto::TensorValue { value: Some(value) }
}

/// Decodes a literal.
pub(super) fn literal_from_proto(
    value: &proto::Value,
    resolve: Resolve<'_>,
) -> Result<Literal, String> {
    nested_literal(value, resolve, 0)
}

fn nested_literal(
    value: &proto::Value,
    resolve: Resolve<'_>,
    depth: usize,
) -> Result<Literal, String> {
    if depth > MAX_DEPTH {
        return Err(format!("a value is nested deeper than {MAX_DEPTH} levels"));
    }
    let ty = type_from_proto(value.r#type.as_ref(), &mut || Symbol(0))?;
    let immediate = match (value.value.as_ref().ok_or("a value is missing")?, &ty) {
        (value::Value::Immediate(i), _) => i.value.as_ref().ok_or("a value is missing")?,
        (value::Value::BlobFile(blob), Type::Tensor(t)) => {
            let data = resolve(&blob.file_name, blob.offset, t)?;
            return Ok(Literal::Tensor(t.clone(), data));
        }
        (value::Value::BlobFile(_), _) => {
            return Err(format!("expected a tensor in a weight file, found {ty}"));
        }
    };
    let mut items = |values: &[proto::Value]| -> Result<Vec<Literal>, String> {
        values
            .iter()
            .map(|v| nested_literal(v, resolve, depth + 1))
            .collect()
    };
    match (immediate, ty) {
        (immediate_value::Value::Tensor(t), Type::Tensor(ty)) => tensor_literal(ty, t),
        (immediate_value::Value::List(list), Type::List(element, len)) => {
            let list = items(&list.values)?;
            if len.is_some_and(|n| n != list.len())
                || list.iter().any(|item| !item.ty().compatible(&element))
            {
                return Err(format!(
                    "the {} items of a list do not match its type",
                    list.len()
                ));
            }
            Ok(Literal::List(*element, list))
        }
        (immediate_value::Value::Tuple(tuple), ty @ Type::Tuple(_)) => {
            let tuple = Literal::Tuple(items(&tuple.values)?);
            if tuple.ty().compatible(&ty) {
                Ok(tuple)
            } else {
                Err(format!("expected {ty}, found {}", tuple.ty()))
            }
        }
        (immediate_value::Value::Dictionary(dict), Type::Dict(k, v)) => {
            let mut pairs = Vec::new();
            for pair in &dict.values {
                let (key, value) = pair
                    .key
                    .as_ref()
                    .zip(pair.value.as_ref())
                    .ok_or("an entry of a dictionary lacks its key or value")?;
                let pair = (
                    nested_literal(key, resolve, depth + 1)?,
                    nested_literal(value, resolve, depth + 1)?,
                );
                if !pair.0.ty().compatible(&k) || !pair.1.ty().compatible(&v) {
                    return Err("an entry of a dictionary does not match its type".to_owned());
                }
                pairs.push(pair);
            }
            Ok(Literal::Dict(*k, *v, pairs))
        }
        (_, ty) => Err(format!("expected a value of type {ty}, found another kind")),
    }
}

fn tensor_literal(ty: TensorType, value: &proto::TensorValue) -> Result<Literal, String> {
    use tensor_value::Value;
    let value = value.value.as_ref().ok_or("a tensor has no elements")?;
    if let (DType::String, Value::Strings(s)) = (ty.dtype, value) {
        return match s.values.as_slice() {
            [s] if ty.rank() == 0 => Ok(Literal::String(s.clone())),
            _ => Err(format!(
                "expected one string for the scalar type string, found {} for {ty}",
                s.values.len()
            )),
        };
    }
    let narrow = |v: &[i32]| -> Option<Vec<u8>> {
        let (bits, signed) = (
            ty.dtype.bits() as u32,
            matches!(ty.dtype, DType::Int8 | DType::Int16 | DType::Int32),
        );
        let (low, high) = if signed {
            (-1i64 << (bits - 1), (1i64 << (bits - 1)) - 1)
        } else {
            (0, (1i64 << bits) - 1)
        };
        let fits = v.iter().all(|&i| (low..=high).contains(&i64::from(i)));
        fits.then(|| {
            v.iter()
                .flat_map(|i| i.to_le_bytes().into_iter().take(bits as usize / 8))
                .collect()
        })
    };
    let bytes = match (ty.dtype, value) {
        (DType::Bool, Value::Bools(v)) => Some(v.values.iter().map(|b| u8::from(*b)).collect()),
        (DType::Fp32, Value::Floats(v)) => {
            Some(v.values.iter().flat_map(|f| f.to_le_bytes()).collect())
        }
        (DType::Fp64, Value::Doubles(v)) => {
            Some(v.values.iter().flat_map(|f| f.to_le_bytes()).collect())
        }
        (
            DType::Int32 | DType::Int16 | DType::Uint16 | DType::Int8 | DType::Uint8,
            Value::Ints(v),
        ) => narrow(&v.values),
        (DType::Int64 | DType::Uint64, Value::LongInts(v)) => {
            Some(v.values.iter().flat_map(|i| i.to_le_bytes()).collect())
        }
        (DType::String | DType::Bool, Value::Bytes(_)) => None,
        (_, Value::Bytes(v)) => Some(v.values.clone()),
        _ => None,
    };
    let bytes: Vec<u8> = bytes.ok_or_else(|| {
        format!("the elements of {ty} are in the field of another type, or out of range")
    })?;
    if ty.byte_len() != Some(bytes.len()) {
        return Err(format!(
            "expected the elements of {ty}, found {} bytes",
            bytes.len()
        ));
    }
    Ok(Literal::Tensor(ty, Data::owned(bytes)))
}

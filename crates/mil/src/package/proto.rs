//! The protobuf messages of Core ML's model file that ML Programs use, with Apple's field numbers.
//!
//! Source: the descriptors of `Model.proto`, `FeatureTypes.proto` and `MIL.proto` in coremltools 9.
//! Maps are sorted, so that equal programs have equal bytes. Fields that are not listed here belong
//! to other kinds of models.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct Model {
    #[prost(int32, tag = "1")]
    pub specification_version: i32,
    #[prost(message, optional, tag = "2")]
    pub description: Option<ModelDescription>,
    #[prost(bool, tag = "10")]
    pub is_updatable: bool,
    #[prost(message, optional, tag = "502")]
    pub ml_program: Option<Program>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ModelDescription {
    #[prost(message, repeated, tag = "1")]
    pub input: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "10")]
    pub output: Vec<FeatureDescription>,
    #[prost(string, tag = "11")]
    pub predicted_feature_name: String,
    #[prost(string, tag = "12")]
    pub predicted_probabilities_name: String,
    #[prost(message, repeated, tag = "13")]
    pub state: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "20")]
    pub functions: Vec<FunctionDescription>,
    #[prost(string, tag = "21")]
    pub default_function_name: String,
    #[prost(message, optional, tag = "100")]
    pub metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FunctionDescription {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub input: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "3")]
    pub output: Vec<FeatureDescription>,
    #[prost(string, tag = "4")]
    pub predicted_feature_name: String,
    #[prost(string, tag = "5")]
    pub predicted_probabilities_name: String,
    #[prost(message, repeated, tag = "6")]
    pub state: Vec<FeatureDescription>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(string, tag = "1")]
    pub short_description: String,
    #[prost(string, tag = "2")]
    pub version_string: String,
    #[prost(string, tag = "3")]
    pub author: String,
    #[prost(string, tag = "4")]
    pub license: String,
    #[prost(btree_map = "string, string", tag = "100")]
    pub user_defined: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FeatureDescription {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub short_description: String,
    #[prost(message, optional, tag = "3")]
    pub r#type: Option<FeatureType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FeatureType {
    #[prost(oneof = "feature_type::Type", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub r#type: Option<feature_type::Type>,
    #[prost(bool, tag = "1000")]
    pub is_optional: bool,
}

pub mod feature_type {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Type {
        #[prost(message, tag = "1")]
        Int64(Empty),
        #[prost(message, tag = "2")]
        Double(Empty),
        #[prost(message, tag = "3")]
        String(Empty),
        #[prost(message, tag = "4")]
        Image(ImageFeatureType),
        #[prost(message, tag = "5")]
        MultiArray(ArrayFeatureType),
        #[prost(message, tag = "6")]
        Dictionary(DictionaryFeatureType),
        #[prost(message, tag = "7")]
        Sequence(Empty),
        #[prost(message, tag = "8")]
        State(StateFeatureType),
    }
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct StateFeatureType {
    #[prost(message, optional, tag = "1")]
    pub array_type: Option<ArrayFeatureType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DictionaryFeatureType {
    #[prost(message, optional, tag = "1")]
    pub int64_key: Option<Empty>,
    #[prost(message, optional, tag = "2")]
    pub string_key: Option<Empty>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct SizeRange {
    #[prost(uint64, tag = "1")]
    pub lower_bound: u64,
    #[prost(int64, tag = "2")]
    pub upper_bound: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ImageFeatureType {
    #[prost(int64, tag = "1")]
    pub width: i64,
    #[prost(int64, tag = "2")]
    pub height: i64,
    #[prost(int32, tag = "3")]
    pub color_space: i32,
    #[prost(message, optional, tag = "21")]
    pub enumerated_sizes: Option<EnumeratedImageSizes>,
    #[prost(message, optional, tag = "31")]
    pub size_range: Option<ImageSizeRange>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EnumeratedImageSizes {
    #[prost(message, repeated, tag = "1")]
    pub sizes: Vec<ImageSize>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct ImageSize {
    #[prost(uint64, tag = "1")]
    pub width: u64,
    #[prost(uint64, tag = "2")]
    pub height: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct ImageSizeRange {
    #[prost(message, optional, tag = "1")]
    pub width_range: Option<SizeRange>,
    #[prost(message, optional, tag = "2")]
    pub height_range: Option<SizeRange>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ArrayFeatureType {
    #[prost(int64, repeated, tag = "1")]
    pub shape: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    #[prost(oneof = "array_feature_type::ShapeFlexibility", tags = "21, 31")]
    pub flexibility: Option<array_feature_type::ShapeFlexibility>,
    #[prost(
        oneof = "array_feature_type::DefaultOptionalValue",
        tags = "41, 51, 61"
    )]
    pub default_value: Option<array_feature_type::DefaultOptionalValue>,
}

pub mod array_feature_type {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum ShapeFlexibility {
        #[prost(message, tag = "21")]
        Enumerated(EnumeratedShapes),
        #[prost(message, tag = "31")]
        Range(ShapeRange),
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum DefaultOptionalValue {
        #[prost(int32, tag = "41")]
        Int(i32),
        #[prost(float, tag = "51")]
        Float(f32),
        #[prost(double, tag = "61")]
        Double(f64),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct EnumeratedShapes {
        #[prost(message, repeated, tag = "1")]
        pub shapes: Vec<Shape>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Shape {
        #[prost(int64, repeated, tag = "1")]
        pub shape: Vec<i64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ShapeRange {
        #[prost(message, repeated, tag = "1")]
        pub size_ranges: Vec<SizeRange>,
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct Program {
    #[prost(int64, tag = "1")]
    pub version: i64,
    #[prost(btree_map = "string, message", tag = "2")]
    pub functions: BTreeMap<String, Function>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Function {
    #[prost(message, repeated, tag = "1")]
    pub inputs: Vec<NamedValueType>,
    #[prost(string, tag = "2")]
    pub opset: String,
    #[prost(btree_map = "string, message", tag = "3")]
    pub block_specializations: BTreeMap<String, Block>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Block {
    #[prost(message, repeated, tag = "1")]
    pub inputs: Vec<NamedValueType>,
    #[prost(string, repeated, tag = "2")]
    pub outputs: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub operations: Vec<Operation>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub inputs: BTreeMap<String, Argument>,
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<NamedValueType>,
    #[prost(message, repeated, tag = "4")]
    pub blocks: Vec<Block>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Argument {
    #[prost(message, repeated, tag = "1")]
    pub arguments: Vec<Binding>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Binding {
    #[prost(oneof = "binding::Binding", tags = "1, 2")]
    pub binding: Option<binding::Binding>,
}

pub mod binding {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Binding {
        #[prost(string, tag = "1")]
        Name(String),
        #[prost(message, tag = "2")]
        Value(Value),
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedValueType {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValueType {
    #[prost(oneof = "value_type::Type", tags = "1, 2, 3, 4, 5")]
    pub r#type: Option<value_type::Type>,
}

pub mod value_type {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Type {
        #[prost(message, tag = "1")]
        Tensor(TensorType),
        #[prost(message, tag = "2")]
        List(Box<ListType>),
        #[prost(message, tag = "3")]
        Tuple(TupleType),
        #[prost(message, tag = "4")]
        Dictionary(Box<DictionaryType>),
        #[prost(message, tag = "5")]
        State(Box<StateType>),
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    #[prost(int32, tag = "1")]
    pub data_type: i32,
    #[prost(int64, tag = "2")]
    pub rank: i64,
    #[prost(message, repeated, tag = "3")]
    pub dimensions: Vec<Dimension>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Dimension {
    #[prost(oneof = "dimension::Dimension", tags = "1, 2")]
    pub dimension: Option<dimension::Dimension>,
}

pub mod dimension {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Oneof)]
    pub enum Dimension {
        #[prost(message, tag = "1")]
        Constant(Constant),
        #[prost(message, tag = "2")]
        Unknown(Unknown),
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Constant {
        #[prost(uint64, tag = "1")]
        pub size: u64,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Unknown {
        #[prost(bool, tag = "1")]
        pub variadic: bool,
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct ListType {
    #[prost(message, optional, tag = "1")]
    pub r#type: Option<ValueType>,
    #[prost(message, optional, tag = "2")]
    pub length: Option<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TupleType {
    #[prost(message, repeated, tag = "1")]
    pub types: Vec<ValueType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DictionaryType {
    #[prost(message, optional, tag = "1")]
    pub key_type: Option<ValueType>,
    #[prost(message, optional, tag = "2")]
    pub value_type: Option<ValueType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StateType {
    #[prost(message, optional, tag = "1")]
    pub wrapped_type: Option<ValueType>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<ValueType>,
    #[prost(oneof = "value::Value", tags = "3, 5")]
    pub value: Option<value::Value>,
}

pub mod value {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Value {
        #[prost(message, tag = "3")]
        Immediate(ImmediateValue),
        #[prost(message, tag = "5")]
        BlobFile(BlobFileValue),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct BlobFileValue {
        #[prost(string, tag = "1")]
        pub file_name: String,
        #[prost(uint64, tag = "2")]
        pub offset: u64,
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct ImmediateValue {
    #[prost(oneof = "immediate_value::Value", tags = "1, 2, 3, 4")]
    pub value: Option<immediate_value::Value>,
}

pub mod immediate_value {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Value {
        #[prost(message, tag = "1")]
        Tensor(TensorValue),
        #[prost(message, tag = "2")]
        Tuple(Values),
        #[prost(message, tag = "3")]
        List(Values),
        #[prost(message, tag = "4")]
        Dictionary(DictionaryValue),
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct Values {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DictionaryValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<KeyValuePair>,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValuePair {
    #[prost(message, optional, tag = "1")]
    pub key: Option<Value>,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorValue {
    #[prost(oneof = "tensor_value::Value", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub value: Option<tensor_value::Value>,
}

pub mod tensor_value {
    use super::*;

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Value {
        #[prost(message, tag = "1")]
        Floats(Floats),
        #[prost(message, tag = "2")]
        Ints(Ints),
        #[prost(message, tag = "3")]
        Bools(Bools),
        #[prost(message, tag = "4")]
        Strings(Strings),
        #[prost(message, tag = "5")]
        LongInts(LongInts),
        #[prost(message, tag = "6")]
        Doubles(Doubles),
        #[prost(message, tag = "7")]
        Bytes(Packed),
    }

    macro_rules! repeated {
        ($($name:ident $kind:ident $t:ty;)*) => {$(
            #[derive(Clone, PartialEq, Message)]
            pub struct $name {
                #[prost($kind, repeated, tag = "1")]
                pub values: Vec<$t>,
            }
        )*};
    }

    repeated! {
        Floats float f32;
        Ints int32 i32;
        Bools bool bool;
        Strings string String;
        LongInts int64 i64;
        Doubles double f64;
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Packed {
        #[prost(bytes = "vec", tag = "1")]
        pub values: Vec<u8>,
    }
}

//! Parses JSON and rejects repeated keys; `serde_json` alone would silently keep the last value.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses a JSON object and rejects repeated keys at any depth.
pub(super) fn parse_object(text: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    match serde_json::from_slice::<Strict>(text)?.0 {
        Value::Object(map) => Ok(map),
        _ => Err(Error::custom("expected an object")),
    }
}

/// Parses a list of JSON objects and rejects repeated keys at any depth.
pub(super) fn parse_objects(text: &[u8]) -> Result<Vec<Map<String, Value>>, serde_json::Error> {
    let object = |value| match value {
        Value::Object(map) => Ok(map),
        _ => Err(Error::custom("expected a list of objects")),
    };
    match serde_json::from_slice::<Strict>(text)?.0 {
        Value::Array(rows) => rows.into_iter().map(object).collect(),
        _ => Err(Error::custom("expected a list of objects")),
    }
}

/// A map with values of one type and without repeated keys.
pub(super) struct UniqueMap<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_map(UniqueVisitor(PhantomData))
            .map(Self)
    }
}

struct UniqueVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(repeated(&key));
            }
            let value = access.next_value()?;
            map.insert(key, value);
        }
        Ok(map)
    }
}

/// The error for a repeated key.
pub(super) fn repeated<E: Error>(key: &str) -> E {
    E::custom(format_args!("key {key:?} is repeated"))
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StrictSeed.deserialize(deserializer).map(Self)
    }
}

struct StrictSeed;

impl<'de> DeserializeSeed<'de> for StrictSeed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictSeed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element_seed(StrictSeed)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(repeated(&key));
            }
            let value = access.next_value_seed(StrictSeed)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

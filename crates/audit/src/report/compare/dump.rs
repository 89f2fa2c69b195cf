//! A dump of `MLComputePlan` as JSON. No tool's form is a standard, so several names of each field
//! are read:
//!
//! ```text
//! [{"output": "y", "operator": "ios18.conv", "preferred": "neuralEngine",
//!   "supported": ["cpu", "neuralEngine"], "cost": 0.25}]
//! ```
//!
//! The list may stand under `operations`, `ops` or `layers`, and functions under `functions`, by
//! name.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{CompareError, Device, Said};

const LISTS: [&str; 3] = ["operations", "ops", "layers"];
const NAMES: [&str; 4] = ["output", "outputs", "outputNames", "name"];
const PREFERRED: [&str; 6] = [
    "preferred",
    "preferredComputeDevice",
    "preferred_compute_device",
    "preferred_device",
    "selected",
    "device",
];
const SUPPORTED: [&str; 4] = [
    "supported",
    "supportedComputeDevices",
    "supported_compute_devices",
    "supported_devices",
];
const COSTS: [&str; 4] = ["cost", "estimatedCost", "estimated_cost", "weight"];

/// What a dump says of each op.
pub fn read(text: &str) -> Result<Vec<Said>, CompareError> {
    let value: Value = serde_json::from_str(text).map_err(CompareError::NotJson)?;
    let mut said = Vec::new();
    collect(&value, "", &mut said);
    if said.is_empty() {
        return Err(CompareError::NoList);
    }
    Ok(said)
}

fn collect(value: &Value, function: &str, out: &mut Vec<Said>) {
    if let Some(functions) = value.get("functions").and_then(Value::as_object) {
        functions.iter().for_each(|(name, f)| collect(f, name, out));
        return;
    }
    let inner = LISTS
        .iter()
        .find_map(|key| value.get(key))
        .or_else(|| value.get("block").map(|b| &b["operations"]));
    let list = inner.unwrap_or(value);
    out.extend(
        list.as_array()
            .into_iter()
            .flatten()
            .filter_map(|op| one(op, function)),
    );
}

fn one(op: &Value, function: &str) -> Option<Said> {
    let get = |keys: &[&str]| keys.iter().find_map(|k| op.get(k)).filter(|v| !v.is_null());
    let name = word(get(&NAMES)?)?;
    let device = |v: &Value| Device::parse(&word(v)?);
    let supported = get(&SUPPORTED).and_then(Value::as_array);
    let said = Said {
        function: function.to_owned(),
        name,
        selected: get(&PREFERRED).and_then(device),
        supported: supported.map(|list| list.iter().filter_map(device).collect::<BTreeSet<_>>()),
        ms: None,
        share: get(&COSTS).and_then(|v| v.as_f64().or_else(|| v.get("weight")?.as_f64())),
    };
    // Constants have neither in Apple's plans.
    (said.selected.is_some() || said.supported.is_some()).then_some(said)
}

/// A string, the first of a list, or the `name` or `type` of an object.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Array(list) => word(list.first()?),
        Value::Object(map) => word(map.get("name").or_else(|| map.get("type"))?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_forms_are_read() {
        let forms = [
            r#"[{"output": "y", "preferred": "neuralEngine", "supported": ["cpu", "neuralEngine"], "cost": 0.25}]"#,
            r#"{"operations": [{"outputs": [{"name": "y"}], "preferredComputeDevice": "MLNeuralEngineComputeDevice",
                "supportedComputeDevices": ["MLCPUComputeDevice", "MLNeuralEngineComputeDevice"], "weight": 0.25}]}"#,
            r#"{"functions": {"main": {"block": {"operations": [{"outputs": ["y"], "device": {"type": "NeuralEngine"},
                "supported_devices": ["CPU", "NeuralEngine"], "estimated_cost": {"weight": 0.25}}, {"outputs": ["c"]}]}}}}"#,
        ];
        for form in forms {
            let said = read(form).unwrap();
            assert_eq!(said.len(), 1, "{form}");
            assert_eq!(
                (said[0].name.as_str(), said[0].selected, said[0].share),
                ("y", Some(Device::Ane), Some(0.25))
            );
            assert_eq!(
                said[0].supported,
                Some(BTreeSet::from([Device::Ane, Device::Cpu]))
            );
        }
        for wrong in ["{}", "[]", "[1, 2]", "{\"operations\": 3}", "["] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}

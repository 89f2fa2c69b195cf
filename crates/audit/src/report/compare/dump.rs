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
    collect(&value, "", &mut said)?;
    if said.is_empty() {
        return Err(CompareError::NoList);
    }
    Ok(said)
}

fn collect(value: &Value, function: &str, out: &mut Vec<Said>) -> Result<(), CompareError> {
    if let Some(functions) = value.get("functions").and_then(Value::as_object) {
        return functions
            .iter()
            .try_for_each(|(name, f)| collect(f, name, out));
    }
    let inner = LISTS
        .iter()
        .find_map(|key| value.get(key))
        .or_else(|| value.get("block").map(|b| &b["operations"]));
    for op in inner.unwrap_or(value).as_array().into_iter().flatten() {
        out.extend(one(op, function)?);
    }
    Ok(())
}

fn one(op: &Value, function: &str) -> Result<Option<Said>, CompareError> {
    let get = |keys: &[&str]| keys.iter().find_map(|k| op.get(k)).filter(|v| !v.is_null());
    let Some(name) = get(&NAMES).and_then(word) else {
        return Ok(None);
    };
    let device = |v: &Value| {
        let known = word(v).and_then(|word| Device::parse(&word));
        known.ok_or_else(|| CompareError::Device {
            op: name.clone(),
            value: v.to_string(),
        })
    };
    let devices = |list: &Vec<Value>| list.iter().map(device).collect::<Result<BTreeSet<_>, _>>();
    let supported = get(&SUPPORTED).and_then(Value::as_array);
    let said = Said {
        function: function.to_owned(),
        selected: get(&PREFERRED).map(device).transpose()?,
        supported: supported.map(devices).transpose()?,
        ms: None,
        share: get(&COSTS).and_then(|v| v.as_f64().or_else(|| v.get("weight")?.as_f64())),
        name,
    };
    // Constants have neither in Apple's plans.
    Ok((said.selected.is_some() || said.supported.is_some()).then_some(said))
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
        for (device, value) in [
            (r#""preferred": "tpu""#, r#""tpu""#),
            (
                r#""preferred": "cpu", "supported": ["cpu", "quantum"]"#,
                r#""quantum""#,
            ),
            (r#""supported": [3]"#, "3"),
        ] {
            let error = read(&format!("[{{\"output\": \"y\", {device}}}]")).unwrap_err();
            let said =
                format!("op `y`: expected a device (CPU, GPU or Neural Engine), found {value}");
            assert_eq!(error.to_string(), said);
        }
        for wrong in ["{}", "[]", "[1, 2]", "{\"operations\": 3}", "["] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}

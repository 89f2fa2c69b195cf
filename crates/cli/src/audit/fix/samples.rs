//! Reads inputs of the user that rewrites are checked on.
//!
//! Each `NAME.npy` of a folder is the input of that name. A folder inside is another set of inputs,
//! and a folder with the name of a function has sets for that function only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use thane_mil::budget::{Budget, Reservation};
use thane_mil::program::Program;
use thane_mil::types::TensorType;
use thane_prove::Sample;

use crate::exit::{Failure, usage, usage_in};
use crate::out::{file_name, has_extension};
use crate::tensors;

/// Sets of arrays, and what they count.
#[derive(Default)]
pub struct Samples {
    pub sets: Vec<Sample>,
    pub held: Vec<Reservation>,
}

pub fn read(folder: &Path, program: &Program, budget: &Budget) -> Result<Samples, Failure> {
    let mut samples = Samples::default();
    let set = |folder: &Path, function, samples: &mut Samples| {
        set(folder, function, program, budget, samples)
    };
    set(folder, None, &mut samples)?;
    for part in folders(folder)? {
        let name = file_name(&part);
        let function = program.function(&name).map(|f| f.name.as_str());
        set(&part, function, &mut samples)?;
        if function.is_some() {
            for inner in folders(&part)? {
                set(&inner, function, &mut samples)?;
            }
        }
    }
    if samples.sets.is_empty() {
        let names: Vec<String> = input_types(program, None).into_keys().collect();
        let names = names.join(".npy, ");
        return Err(usage!(
            "{}: expected arrays named after inputs, found none",
            folder.display()
        )
        .remedy(format!("{names}.npy")));
    }
    Ok(samples)
}

/// The arrays that lie in a folder, as one set.
fn set(
    folder: &Path,
    function: Option<&str>,
    program: &Program,
    budget: &Budget,
    samples: &mut Samples,
) -> Result<(), Failure> {
    let types = input_types(program, function);
    let mut sample = Sample {
        label: folder.display().to_string(),
        function: function.map(str::to_owned),
        ..Sample::default()
    };
    let mut files = entries(folder)?;
    files.retain(|path| has_extension(path, &["npy"]));
    for path in files {
        let name = path.file_stem().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let Some(ty) = types.get(&name) else {
            let names = types.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(usage!(
                "{}: expected an input ({names}), found `{name}`",
                path.display()
            ));
        };
        let array = tensors::from_file(&path, ty, budget).map_err(usage)?;
        samples.held.extend(array.held);
        sample.tensors.insert(name, (array.shape, array.bytes));
    }
    if !sample.tensors.is_empty() {
        samples.sets.push(sample);
    }
    Ok(())
}

/// The inputs of a function, or of all, by name.
fn input_types(program: &Program, function: Option<&str>) -> BTreeMap<String, TensorType> {
    let mut types = BTreeMap::new();
    let functions = program.functions().iter();
    for f in functions.filter(|f| function.is_none_or(|name| f.name == name)) {
        for value in f.body().inputs.iter().map(|v| f.value(*v)) {
            if let Some(ty) = value.ty.tensor() {
                let entry = types.entry(value.name.clone());
                entry.or_insert_with(|| ty.clone());
            }
        }
    }
    types
}

fn folders(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut folders = entries(folder)?;
    folders.retain(|path| path.is_dir());
    Ok(folders)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(folder)?;
        entries.map(|entry| Ok(entry?.path())).collect()
    };
    let mut paths = read().map_err(usage_in(folder))?;
    paths.sort();
    Ok(paths)
}

//! One call of a function of a package: the flags that say which function and which inputs, and
//! the values that they give.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use thane_mil::backend::{Backend, Instance, Limits, RunError};
use thane_mil::budget::Budget;
use thane_mil::package::{Feature, Image, Package};
use thane_mil::program::{Function, Program, Value};
use thane_mil::types::{TensorType, Type};

use crate::app::App;
use crate::decoder_inputs::{self, DecoderCall};
use crate::exit::{Failure, usage};
use crate::image;
use crate::npy::Array;
use crate::tensors::{self, Named, named_path, named_shape};
use thane_mil::nearest::did_you_mean;

/// Which function is called, with which inputs and states.
#[derive(Debug, clap::Args)]
pub struct CallFlags {
    /// Function to run [default: the package's default].
    #[arg(long, value_name = "NAME")]
    pub function: Option<String>,
    /// Read an input from .npy, PNG or JPEG; other inputs are generated.
    ///
    /// PNG and JPEG files are for inputs that the package describes as images.
    #[arg(long, value_name = "NAME=FILE", value_parser = named_path)]
    pub input: Vec<Named<PathBuf>>,
    /// Read a state from a file; other states are zeros.
    #[arg(long, value_name = "NAME=FILE.npy", value_parser = named_path)]
    pub state: Vec<Named<PathBuf>>,
    /// Shape of a generated input, such as x=1x16.
    #[arg(long, value_name = "NAME=DIMS", value_parser = named_shape)]
    pub shape: Vec<Named<Vec<usize>>>,
    /// Seed of generated inputs: floats from -1 to 1, integers 0 or 1, pixels from 0 to 255.
    ///
    /// Positions, write ranges and masks of decoders for the Neural Engine are those of a first
    /// call.
    #[arg(long, alias = "random-seed", value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// An input, output or state.
#[derive(Serialize)]
pub struct Row {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    /// File that it is read from or written to; null for a generated input.
    pub file: Option<PathBuf>,
}

#[derive(Serialize)]
pub struct Input {
    #[serde(flatten)]
    pub row: Row,
    /// How the input was generated; null if it was read from a file.
    pub made_up: Option<String>,
}

/// The inputs and states of a call.
#[derive(Default)]
pub struct Given {
    pub rows: Vec<Input>,
    pub inputs: Vec<(String, Array)>,
    /// States from files; all others are zeros.
    pub states: Vec<(String, Array)>,
}

impl CallFlags {
    /// The name of the first flag that was given, if there is one.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--function", self.function.is_some()),
            ("--input", !self.input.is_empty()),
            ("--state", !self.state.is_empty()),
            ("--shape", !self.shape.is_empty()),
            ("--seed", self.seed != 0),
        ];
        given.iter().find(|(_, is)| *is).map(|(flag, _)| *flag)
    }

    /// The function that is called. Names of inputs and states that it does not have are errors.
    pub fn function<'a>(&self, package: &'a Package) -> Result<&'a Function, Failure> {
        let name = self.function.as_ref().unwrap_or(&package.default_function);
        let f = package.program.function(name).ok_or_else(|| {
            let functions = package.program.functions();
            let names: Vec<&str> = functions.iter().map(|f| f.name.as_str()).collect();
            let hint = did_you_mean(name, names.iter().copied());
            usage!("the package has no function `{name}`{hint}")
                .remedy(format!("--function {}", names.join(" or ")))
        })?;
        self.check_names(f).map_err(usage)?;
        Ok(f)
    }

    fn check_names(&self, f: &Function) -> anyhow::Result<()> {
        let names = |states: bool| -> Vec<&str> {
            inputs(f)
                .filter(|v| matches!(v.ty, Type::State(_)) == states)
                .map(|v| v.name.as_str())
                .collect()
        };
        let known = |what: &str, name: &str, names: Vec<&str>| {
            anyhow::ensure!(
                names.contains(&name),
                "function `{}` has no {what} `{name}`; it has {}{}",
                f.name,
                names.join(", "),
                did_you_mean(name, names.iter().copied())
            );
            Ok(())
        };
        let inputs = self.input.iter().map(|n| &n.name);
        for name in inputs.chain(self.shape.iter().map(|n| &n.name)) {
            known("input", name, names(false))?;
        }
        let mut states = self.state.iter();
        states.try_for_each(|n| known("state", &n.name, names(true)))
    }

    /// Fills inputs and states from files, or generates inputs.
    pub fn fill(
        &self,
        instance: &mut dyn Instance,
        f: &Function,
        package: &Package,
        app: &App,
    ) -> Result<Given, Failure> {
        let mut given = Given::default();
        let features = package.interfaces.get(&f.name).map(|i| &i.features);
        let decoder = DecoderCall::of(f);
        for value in inputs(f) {
            match &value.ty {
                Type::Tensor(ty) => {
                    let feature = features.and_then(|f| f.get(&value.name));
                    let valid = decoder.and_then(|call| call.value(&value.name, ty));
                    let (input, array) = self
                        .fill_input(instance, &value.name, (ty, valid), feature, app)
                        .map_err(usage)?;
                    given.rows.push(input);
                    given.inputs.push((value.name.clone(), array));
                }
                Type::State(ty) => {
                    let array = self.fill_state(instance, &value.name, ty, app);
                    let array = array.map_err(usage)?;
                    given.states.extend(array.map(|a| (value.name.clone(), a)));
                }
                _ => {}
            }
        }
        Ok(given)
    }

    fn fill_input(
        &self,
        instance: &mut dyn Instance,
        name: &str,
        (ty, valid): (&TensorType, Option<decoder_inputs::Value>),
        feature: Option<&Feature>,
        app: &App,
    ) -> anyhow::Result<(Input, Array)> {
        let given = self.input.iter().find(|n| n.name == name).map(|n| &n.value);
        let image = feature.and_then(|f| f.image.as_ref());
        let mut made = None;
        let array = match (given, image, valid) {
            (Some(path), Some(image), _) => image_from_file(path, image, ty, &app.budget),
            (Some(path), None, _) => tensors::from_file(path, ty, &app.budget),
            (None, None, Some(value)) => {
                made = Some(value.what);
                tensors::known(ty, value.bytes, &app.budget)
            }
            (None, ..) => self.made_up(name, ty, feature, app),
        };
        let array = array.with_context(|| format!("input `{name}`"))?;
        let filled = instance.input(name, &array.shape)?;
        filled.copy_from_slice(&array.bytes);
        let (dtype, shape) = (ty.dtype.name(), array.shape.clone());
        let [low, high] = match image {
            Some(_) => [0, 255],
            None => tensors::range(ty.dtype).map(i16::from),
        };
        let made = made.unwrap_or_else(|| format!("from {low} to {high}, seed {}", self.seed));
        let made_up = || format!("{dtype} {shape:?}, {made}");
        let made_up = given.is_none().then(made_up);
        let row = Row {
            name: name.to_owned(),
            dtype,
            shape,
            file: given.cloned(),
        };
        Ok((Input { row, made_up }, array))
    }

    fn made_up(
        &self,
        name: &str,
        ty: &TensorType,
        feature: Option<&Feature>,
        app: &App,
    ) -> anyhow::Result<Array> {
        let asked = self.shape.iter().find(|n| n.name == name);
        let asked = asked.map(|n| n.value.as_slice());
        if let Some(image) = feature.and_then(|f| f.image.as_ref()) {
            return image::made_up(self.seed, name, ty, image, asked, &app.budget);
        }
        let default = feature.and_then(|f| f.shape.default_shape());
        let shape = tensors::shape(ty, asked, default);
        let sizeless = || format!("it is {ty}; --shape {name}=DIMS gives it a size that fits");
        let shape = shape.with_context(sizeless)?;
        tensors::made_up(self.seed, name, ty, shape, &app.budget)
    }

    fn fill_state(
        &self,
        instance: &mut dyn Instance,
        name: &str,
        ty: &TensorType,
        app: &App,
    ) -> anyhow::Result<Option<Array>> {
        let Some(given) = self.state.iter().find(|n| n.name == name) else {
            return Ok(None);
        };
        let array = tensors::from_file(&given.value, ty, &app.budget)
            .with_context(|| format!("state `{name}`"))?;
        instance.state_mut(name)?.copy_from_slice(&array.bytes);
        Ok(Some(array))
    }
}

/// A running copy of the function on a backend, with states of zeros.
pub fn start(f: &Function, backend: &dyn Backend) -> Result<(Program, Box<dyn Instance>), Failure> {
    let alone = Program::new(vec![f.clone()]);
    Limits::default().check_states(&alone).map_err(|e| {
        usage(e).remedy(
            "a program with a smaller state, such as that of thane convert with a shorter \
             --context",
        )
    })?;
    let executable = backend.load(&alone).map_err(usage)?;
    let instance = executable.instantiate().map_err(usage)?;
    Ok((alone, instance))
}

/// Reads an image, or its tensor from a .npy file.
pub fn image_from_file(
    path: &Path,
    image: &Image,
    ty: &TensorType,
    budget: &Budget,
) -> anyhow::Result<Array> {
    match image::open(path, budget)? {
        Some(opened) => opened.read(image, ty, budget),
        None => tensors::from_file(path, ty, budget).context("expected PNG, JPEG or .npy"),
    }
    .with_context(|| path.display().to_string())
}

fn inputs(f: &Function) -> impl Iterator<Item = &Value> {
    f.body().inputs.iter().map(|v| f.value(*v))
}

/// A failure of a call, with the flags for inputs that were generated and may be at fault.
pub fn failed(error: RunError, rows: &[Input]) -> Failure {
    let made_up = rows.iter().filter(|input| input.made_up.is_some());
    let flags: Vec<String> = made_up
        .map(|input| format!("--input {}=FILE", input.row.name))
        .collect();
    let failure = usage(error);
    if flags.is_empty() {
        return failure;
    }
    failure.remedy(format!("{}: these values were made up", flags.join(" ")))
}

/// Says which inputs were generated, and how.
pub fn say_made_up(rows: &[Input], app: &App) {
    for Input { row, made_up } in rows {
        if let Some(made_up) = made_up {
            let name = &row.name;
            app.output.say(&format!(
                "input {name} was made up: {made_up}; --input {name}=FILE gives it"
            ));
        }
    }
}

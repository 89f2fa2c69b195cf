//! Compiled models (`.mlmodelc`): the program as text, its weights, and the description with a
//! header.
//!
//! Source of the layout: published files of coremlc 3520 and 3600 (facts, 7.7). Two parts of the
//! format are not known well enough to write. No published file has enumerated shapes, so they are
//! rejected. Histograms in `metadata.json` name each op by the opset that last changed it in
//! Apple's own table (`Ios18.relu`, `Ios16.einsum`), which differs from coremltools' table;
//! histograms and precisions are left out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use prost::Message;

use super::blob::Plan;
use super::description::{Feature, Interface, Shape, SizeRange};
use super::error::PackageError;
use super::files::{Files, MAX_MODEL_BYTES, Weights};
use super::manifest::{DESCRIPTION, FILE_NAME};
use super::partial::Partial;
use super::proto;
use super::read::assemble;
use super::write::{create_in, model, put_in_place, require_replaceable, require_vacant};
use super::{Package, Summary, check, description, kind, memory, report, state};
use crate::data::Data;
use crate::literal::Literal;
use crate::program::{Function, Program};
use crate::text::{Blobs, parse_watched, parsed_bytes, print};
use crate::types::{DType, Dim, Symbol, TensorType, Type};
use crate::watch::Watch;

const TEXT: &str = "model.mil";
const ANALYTICS: &str = "analytics/coremldata.bin";
/// A description starts and ends with this number: the field of a model that holds an ML Program.
const MARK: u32 = 502;
const KIND: &[u8] = b"generic";
/// Offsets in a description's header.
const VERSION_AT: usize = 0x04;
const KIND_AT: usize = 0x1c;
const VERSION_AGAIN_AT: usize = 0x2b;
const LEN_AT: usize = 0x4b;
const HEADER_BYTES: usize = 0x53;
const TRAILER_BYTES: usize = 16;
/// The function attribute with the shapes of its inputs, which the description contains as well.
const FLEXIBLE: &str = "FlexibleShapeInformation";

impl Package {
    /// Writes the package as a compiled model to `path`, where nothing may exist.
    pub fn write_compiled(&self, path: &Path) -> Result<Summary, PackageError> {
        require_vacant(path)?;
        let (partial, summary) = self.compile_partial(path)?;
        put_in_place(partial, path)?;
        Ok(summary)
    }

    /// Writes the package as a compiled model to `path` and replaces the compiled model there, if
    /// any. The old one stays until the new one is complete.
    pub fn replace_compiled(&self, path: &Path) -> Result<Summary, PackageError> {
        require_replaceable(path, DESCRIPTION, "compiled model")?;
        let (partial, summary) = self.compile_partial(path)?;
        partial.replace().map_err(PackageError::io(path))?;
        Ok(summary)
    }

    fn compile_partial(&self, path: &Path) -> Result<(Partial, Summary), PackageError> {
        check(self).map_err(|violations| PackageError::Invalid {
            path: path.to_owned(),
            violations,
        })?;
        let program = text_form(self).map_err(|reason| PackageError::unusable(path, reason))?;
        let mut blobs = Blobs::default();
        let text = print(&program, &mut blobs);
        let partial = Partial::folder(path).map_err(PackageError::io(path))?;
        let file = |name: &str, bytes: &[u8]| {
            create_in(&partial, &partial.path().join(name), |out| {
                out.write_all(bytes)
            })
        };
        let mut summary = Summary {
            n_functions: program.functions().len(),
            ..Summary::default()
        };
        summary.model_bytes = file(TEXT, text.as_bytes())?;
        if !blobs.is_empty() {
            summary.n_constants = blobs.len();
            let weights = partial.path().join("weights/weight.bin");
            summary.weight_bytes = create_in(&partial, &weights, |out| blobs.plan().write(out))?;
        }
        let model = model(self, &mut Plan::default());
        file(ANALYTICS, &report::analytics(&model.encode_to_vec()))?;
        file("metadata.json", report::metadata(&model).as_bytes())?;
        let described = model.description.unwrap_or_default().encode_to_vec();
        file(
            DESCRIPTION,
            &add_header(&described, model.specification_version),
        )?;
        Ok((partial, summary))
    }
}

/// Whether the files are a compiled model instead of a package.
pub(super) fn is_compiled(files: Files<'_>) -> bool {
    files.has(DESCRIPTION) && !files.has(FILE_NAME)
}

/// Bytes that a compiled model in memory takes once it is read: its description as messages, and
/// its text as a program.
pub(super) fn decoded_bytes(files: Files<'_>, watch: &Watch<'_>) -> Result<usize, PackageError> {
    /// The description as messages, what is taken from it, and the interfaces of functions.
    const COPIES: usize = 3;
    let stored = |name: &str| {
        let (_, bytes) = files.stored_within(Path::new(""), Path::new(name), MAX_MODEL_BYTES)?;
        Ok(bytes)
    };
    let description = stored(DESCRIPTION)?;
    let messages = description.as_slice().get(HEADER_BYTES..);
    let of_messages = messages.map_or(0, |messages| {
        memory::decoded_bytes(memory::Kind::Description, messages)
    });
    let text = if files.has(TEXT) {
        Some(stored(TEXT)?)
    } else {
        None
    };
    let text = text.as_ref().map_or(&[][..], |text| text.as_slice());
    // Other bytes than text are refused before they are parsed.
    let of_program = std::str::from_utf8(text).map_or(0, |text| parsed_bytes(text, watch));
    let of_messages = of_messages.saturating_mul(COPIES);
    Ok(description.len() + of_messages + text.len() + of_program)
}

/// Reads a compiled model.
pub(super) fn open(files: Files<'_>, watch: &Watch<'_>) -> Result<Package, PackageError> {
    let path = files.path();
    let top = Path::new("");
    let file = path.join(DESCRIPTION);
    let (_, bytes) = files.read(top, Path::new(DESCRIPTION), MAX_MODEL_BYTES)?;
    let described = remove_header(&bytes)
        .and_then(|b| proto::ModelDescription::decode(b).map_err(|e| e.to_string()));
    let described = described.map_err(|reason| PackageError::unusable(&file, reason))?;
    if !files.has(TEXT) {
        return Err(PackageError::unusable(
            path,
            format!("has no {TEXT}: only compiled ML Programs are supported"),
        ));
    }
    let text = path.join(TEXT);
    let (_, source) = files.read(top, Path::new(TEXT), MAX_MODEL_BYTES)?;
    let source = String::from_utf8(source)
        .map_err(|_| PackageError::unusable(&text, "is not UTF-8 text"))?;
    let mut weights = Weights::new(files, top);
    let constant = &mut |name: &str, offset, ty: &TensorType| weights.constant(name, offset, ty);
    let (program, _) = parsed(&source, &text, constant, watch)?;
    PackageError::interrupted(path, watch)?;
    assemble(described, program, path, &file)
}

/// Parses a program; `constant` looks up its constants. Also returns the input shapes that the
/// functions declare.
pub(super) fn parsed(
    source: &str,
    path: &Path,
    constant: &mut dyn FnMut(&str, u64, &TensorType) -> Result<Data, PackageError>,
    watch: &Watch<'_>,
) -> Result<(Program, BTreeMap<String, Interface>), PackageError> {
    let fault = RefCell::new(None);
    let constant = RefCell::new(constant);
    let resolve = |name: &str, offset: u64, ty: &TensorType| {
        let found = (*constant.borrow_mut())(name, offset, ty);
        found.map_err(|e| *fault.borrow_mut() = Some(e)).ok()
    };
    let parsed = parse_watched(source, &resolve, watch);
    if watch.is_over() {
        PackageError::interrupted(path, watch)?;
    }
    let mut program = match (parsed, fault.take()) {
        (_, Some(fault)) => return Err(fault),
        (Err(e), None) => {
            return Err(PackageError::unusable(
                path,
                format!(
                    "is not valid MIL text: \
                                                                           {e}"
                ),
            ));
        }
        (Ok(program), None) => program,
    };
    let mut interfaces = BTreeMap::new();
    for f in &mut program.functions {
        let flexible_shapes = f.attributes.iter().find(|(name, _)| name == FLEXIBLE);
        interfaces.extend(
            flexible_shapes.map(|(_, literal)| (f.name.clone(), decode_interface(literal))),
        );
        f.attributes.retain(|(name, _)| name != FLEXIBLE);
        state::merge(f);
    }
    Ok((program, interfaces))
}

/// Converts the program to its form in the text.
fn text_form(package: &Package) -> Result<Program, String> {
    let mut program = state::split(&package.program);
    for f in &mut program.functions {
        let flexible_shapes = flexible_shapes(package, f)?;
        f.attributes.retain(|(name, _)| name != FLEXIBLE);
        f.attributes
            .extend(flexible_shapes.map(|literal| (FLEXIBLE.to_owned(), literal)));
    }
    if program.attributes.is_empty() {
        let pair = (
            Literal::string("thane"),
            Literal::string(env!("CARGO_PKG_VERSION")),
        );
        program.attributes.push((
            "buildInfo".to_owned(),
            Literal::Dict(string(), string(), vec![pair]),
        ));
    }
    Ok(program)
}

fn string() -> Type {
    Type::Tensor(TensorType::scalar(DType::String))
}

/// The shapes of the inputs that have more than one, as an attribute.
fn flexible_shapes(package: &Package, f: &Function) -> Result<Option<Literal>, String> {
    let pair = Type::Tensor(TensorType::new(DType::Int32, [2usize]));
    let (mut defaults, mut ranges) = (Vec::new(), Vec::new());
    for value in f.body().inputs.iter().map(|v| f.value(*v)) {
        let Type::Tensor(ty) = &value.ty else {
            continue;
        };
        let feature = package
            .interfaces
            .get(&f.name)
            .and_then(|i| i.features.get(&value.name));
        let (default, bounds) = match feature.map(|feature| &feature.shape) {
            Some(Shape::Enumerated { .. }) => {
                let remedy = "their compiled form is unknown: write a .mlpackage";
                return Err(format!(
                    "has enumerated shapes of `{}` in `{}`; {remedy}",
                    value.name, f.name
                ));
            }
            _ if ty.known_shape().is_some() => continue,
            Some(Shape::Ranges { default, ranges }) => (default.clone(), ranges.clone()),
            _ => {
                let bounds: Vec<SizeRange> =
                    ty.shape.iter().map(|d| description::bounds(*d)).collect();
                (bounds.iter().map(|r| r.lower).collect(), bounds)
            }
        };
        let default: Vec<i32> = default.iter().map(|n| int(*n)).collect();
        defaults.push((Literal::string(&value.name), Literal::i32s(&default)));
        // -1 means unlimited.
        let bounds = bounds
            .iter()
            .map(|r| Literal::i32s(&[int(r.lower), r.upper.map_or(-1, int)]))
            .collect();
        ranges.push((
            Literal::string(&value.name),
            Literal::List(pair.clone(), bounds),
        ));
    }
    if defaults.is_empty() {
        return Ok(None);
    }
    let open = Dim::Symbol(Symbol(0));
    let vector = Type::Tensor(TensorType::new(DType::Int32, [open]));
    let named = |name: &str, ty, items| {
        Literal::Tuple(vec![
            Literal::string(name),
            Literal::Dict(string(), ty, items),
        ])
    };
    let list = Type::List(Box::new(pair), None);
    Ok(Some(Literal::Tuple(vec![
        named("DefaultShapes", vector, defaults),
        named("RangeDims", list, ranges),
    ])))
}

/// Decodes what [`flexible_shapes`] wrote; skips entries that it cannot decode.
fn decode_interface(literal: &Literal) -> Interface {
    let Literal::Tuple(parts) = literal else {
        return Interface::default();
    };
    let part = |name: &str| {
        parts.iter().find_map(|part| match part {
            Literal::Tuple(pair) => match &pair[..] {
                [Literal::String(s), Literal::Dict(_, _, items)] if s == name => Some(&items[..]),
                _ => None,
            },
            _ => None,
        })
    };
    let sizes = |literal: &Literal| -> Option<Vec<i64>> { literal.to_ints() };
    let range = |literal: &Literal| match sizes(literal)?[..] {
        [lower, upper] => Some(SizeRange {
            lower: usize::try_from(lower).ok()?,
            upper: usize::try_from(upper).ok(),
        }),
        _ => None,
    };
    let ranges = part("RangeDims")
        .unwrap_or_default()
        .iter()
        .filter_map(|(name, dims)| match (name, dims) {
            (Literal::String(name), Literal::List(_, dims)) => Some((
                name.clone(),
                dims.iter().map(range).collect::<Option<Vec<_>>>()?,
            )),
            _ => None,
        });
    let defaults = part("DefaultShapes").unwrap_or_default();
    let features = ranges.filter_map(|(name, ranges)| {
        let entry = defaults
            .iter()
            .find(|(key, _)| *key == Literal::string(&name));
        let default: Option<Vec<usize>> = sizes(&entry?.1)?
            .into_iter()
            .map(|n| usize::try_from(n).ok())
            .collect();
        let default = default.filter(|default| default.len() == ranges.len())?;
        Some((
            name,
            Feature {
                shape: Shape::Ranges { default, ranges },
                ..Feature::default()
            },
        ))
    });
    Interface {
        features: features.collect(),
        ..Interface::default()
    }
}

fn int(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Adds the header and trailer to a description.
fn add_header(description: &[u8], version: i32) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MARK.to_le_bytes());
    put(VERSION_AT, &version.to_le_bytes());
    put(KIND_AT, &(KIND.len() as u64).to_le_bytes());
    put(KIND_AT + 8, KIND);
    put(VERSION_AGAIN_AT, &version.to_le_bytes());
    put(LEN_AT, &(description.len() as u64).to_le_bytes());
    out.extend_from_slice(description);
    out.extend_from_slice(&MARK.to_le_bytes());
    out.resize(out.len() + TRAILER_BYTES - 4, 0);
    out
}

/// Removes the header and trailer from a description.
fn remove_header(bytes: &[u8]) -> Result<&[u8], String> {
    let header = bytes
        .get(..HEADER_BYTES)
        .ok_or("is truncated inside its header: copy the model again")?;
    let u32_at = |at: usize| {
        header[at..at + 4]
            .try_into()
            .map(u32::from_le_bytes)
            .unwrap_or_default()
    };
    if u32_at(0) != MARK {
        let unknown = || {
            format!(
                "describes a model of kind {}, expected an ML Program ({MARK})",
                u32_at(0)
            )
        };
        return Err(kind::refusal_of(u32_at(0)).unwrap_or_else(unknown));
    }
    if header.get(KIND_AT + 8..KIND_AT + 8 + KIND.len()) != Some(KIND) {
        return Err(
            "has a header of unknown layout: use the .mlpackage that it was compiled \
             from"
                .to_owned(),
        );
    }
    let len = header[LEN_AT..LEN_AT + 8]
        .try_into()
        .map(u64::from_le_bytes)
        .unwrap_or_default();
    let end = usize::try_from(len)
        .ok()
        .and_then(|n| n.checked_add(HEADER_BYTES));
    let description = end.and_then(|end| bytes.get(HEADER_BYTES..end));
    description.ok_or_else(|| {
        format!(
            "declares {len} bytes of description, but has only {} bytes",
            bytes.len()
        )
    })
}

//! Prints programs as MIL text.

use std::fmt::Write;

use crate::data::Data;
use crate::literal::{Literal, f16_to_f32, quiet_nan};
use crate::opset::Opset;
use crate::package::blob::Plan;
use crate::program::{Arg, BlockId, Function, Op, OpId, Program, ValueId};
use crate::types::{DType, TensorType};
use crate::valid::has_text;

/// The path of the weight file in printed text, unless [`Blobs::at`] sets another.
pub const WEIGHT_PATH: &str = "@model_path/weights/weight.bin";

/// Constants with fewer elements are printed inline. Source: coremltools' writer.
const MIN_BLOB_ELEMENTS: usize = 10;

/// The constants that the text refers to, each at its offset in the weight file.
///
/// Offsets follow weight blob storage version 2. Equal constants share an offset.
#[derive(Debug)]
pub struct Blobs {
    plan: Plan,
    /// The path of the weight file in the text.
    path: String,
}

impl Default for Blobs {
    fn default() -> Self {
        Self::at(WEIGHT_PATH)
    }
}

impl Blobs {
    /// An empty set of constants whose weight file has the path `path` in the text.
    pub fn at(path: &str) -> Self {
        Self {
            plan: Plan::default(),
            path: path.to_owned(),
        }
    }

    /// The constant at `offset`, if it has the type `ty`.
    pub fn get(&self, offset: u64, ty: &TensorType) -> Option<Data> {
        self.plan.get(offset, ty)
    }

    /// Number of constants.
    pub fn len(&self) -> usize {
        self.plan.n_constants()
    }

    /// Whether there are no constants.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The layout of the weight file.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }
}

/// Returns extra attributes for an op, which are printed after its own.
pub type Notes<'a> = &'a dyn Fn(&Function, OpId) -> Vec<(String, Literal)>;

/// Prints a program. Large constants are added to `blobs`.
pub fn print(program: &Program, blobs: &mut Blobs) -> String {
    print_with(program, blobs, &|_, _| Vec::new())
}

/// Prints a program with extra attributes on ops, as Apple's compiler leaves them.
/// [`parse`](super::parse()) does not accept such a text.
pub fn print_with(program: &Program, blobs: &mut Blobs, notes: Notes<'_>) -> String {
    let mut printer = Printer {
        out: String::new(),
        blobs,
        opset: Opset::CoreMl8,
        notes,
    };
    printer.out.push_str("program(1.3)\n");
    if !program.attributes.is_empty() {
        printer.attributes(&program.attributes);
        printer.out.push('\n');
    }
    printer.out.push_str("{\n");
    for function in program.functions() {
        printer.function(function);
    }
    printer.out.push_str("}\n");
    printer.out
}

struct Printer<'a> {
    out: String,
    blobs: &'a mut Blobs,
    /// Opset of the current function.
    opset: Opset,
    notes: Notes<'a>,
}

macro_rules! put {
    ($printer:expr, $($arg:tt)*) => {
        write!($printer.out, $($arg)*).expect("writing to a String cannot fail")
    };
}

impl Printer<'_> {
    fn attributes(&mut self, attributes: &[(String, Literal)]) {
        self.out.push('[');
        for (i, (name, literal)) in attributes.iter().enumerate() {
            put!(self, "{}{name} = ", if i > 0 { ", " } else { "" });
            self.literal(literal);
        }
        self.out.push(']');
    }

    fn function(&mut self, f: &Function) {
        self.opset = f.opset;
        put!(self, "    func {}<{}>(", f.name, f.opset.name());
        self.declare(f, &f.body().inputs);
        self.out.push_str(") ");
        if !f.attributes.is_empty() {
            self.attributes(&f.attributes);
            self.out.push(' ');
        }
        self.block(f, Function::BODY, 2);
        self.out.push('\n');
    }

    /// Prints the ops of a block in braces, then its outputs.
    fn block(&mut self, f: &Function, id: BlockId, depth: usize) {
        let indent = "    ".repeat(depth);
        self.out.push_str("{\n");
        for op in &f.block(id).ops {
            self.op(f, *op, depth + 1);
        }
        put!(self, "{indent}}} -> (");
        self.names(f, &f.block(id).outputs);
        self.out.push_str(");");
    }

    fn names(&mut self, f: &Function, values: &[ValueId]) {
        for (i, v) in values.iter().enumerate() {
            put!(
                self,
                "{}{}",
                if i > 0 { ", " } else { "" },
                f.value(*v).name
            );
        }
    }

    /// Types and names of values.
    fn declare(&mut self, f: &Function, values: &[ValueId]) {
        for (i, value) in values.iter().map(|v| f.value(*v)).enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            put!(self, "{comma}{} {}", value.ty, value.name);
        }
    }

    fn op(&mut self, f: &Function, id: OpId, depth: usize) {
        let op = f.op(id);
        let indent = "    ".repeat(depth);
        self.out.push_str(&indent);
        self.declare(f, &op.results);
        put!(
            self,
            "{}{}(",
            if op.results.is_empty() { "" } else { " = " },
            op.def.name
        );
        let mut args: Vec<(&str, &Arg)> = op
            .def
            .params
            .iter()
            .zip(&op.args)
            .filter_map(|(p, a)| Some((p.name, a.as_ref()?)))
            .collect();
        args.sort_by_key(|(name, _)| *name);
        let mut attributes = Vec::new();
        if op.def.attributes {
            attributes.append(&mut args);
        }
        for (i, (name, arg)) in args.into_iter().enumerate() {
            put!(self, "{}{name} = ", if i > 0 { ", " } else { "" });
            self.arg(f, arg);
        }
        self.out.push(')');
        let name = op.name.as_ref().map(|n| Arg::Literal(Literal::string(n)));
        attributes.extend(name.iter().map(|n| ("name", n)));
        let notes: Vec<(String, Arg)> = (self.notes)(f, id)
            .into_iter()
            .map(|(n, l)| (n, Arg::Literal(l)))
            .collect();
        attributes.extend(notes.iter().map(|(n, a)| (n.as_str(), a)));
        attributes.sort_by_key(|(name, _)| *name);
        for (i, (name, arg)) in attributes.iter().enumerate() {
            put!(self, "{}{name} = ", if i > 0 { ", " } else { "[" });
            self.arg(f, arg);
        }
        self.out
            .push_str(if attributes.is_empty() { "" } else { "]" });
        if !op.blocks.is_empty() {
            self.blocks(f, op, depth);
        }
        self.out.push_str(";\n");
    }

    /// Prints the nested blocks of an op, in braces after its attributes. No text with nested
    /// blocks written by Apple's compiler was available, so this form is Thane's own.
    fn blocks(&mut self, f: &Function, op: &Op, depth: usize) {
        let indent = "    ".repeat(depth);
        self.out.push_str(" {\n");
        for &block in &op.blocks {
            put!(self, "{indent}    block(");
            self.declare(f, &f.block(block).inputs);
            self.out.push_str(") ");
            self.block(f, block, depth + 1);
            self.out.push('\n');
        }
        put!(self, "{indent}}}");
    }

    fn arg(&mut self, f: &Function, arg: &Arg) {
        match arg {
            Arg::Value(v) => put!(self, "{}", f.value(*v).name),
            Arg::Values(vs) => {
                self.out.push('(');
                self.names(f, vs);
                self.out.push(')');
            }
            Arg::Literal(l) => self.literal(l),
        }
    }

    fn literal(&mut self, literal: &Literal) {
        put!(self, "{}(", literal.ty());
        match literal {
            Literal::Tensor(ty, data) if is_blob(ty, data, self.opset) => {
                let offset = self.blobs.plan.place(ty, data);
                let path = Literal::string(&self.blobs.path);
                self.out.push_str("BLOBFILE(path = string(");
                self.bare(&path);
                put!(self, "), offset = uint64({offset}))");
            }
            _ => self.bare(literal),
        }
        self.out.push(')');
    }

    /// Prints a literal without its type, as inside another literal.
    fn bare(&mut self, literal: &Literal) {
        match literal {
            Literal::String(s) => self.string(s),
            Literal::Tensor(ty, data) => {
                let shape: Vec<usize> = ty.shape.iter().map(|d| d.known().unwrap_or(0)).collect();
                self.elements(ty.dtype, &shape, &data.to_vec(), &mut 0);
            }
            Literal::List(_, items) => self.sequence('[', items, ']'),
            Literal::Tuple(items) => self.sequence('(', items, ')'),
            Literal::Dict(_, _, items) => {
                self.out.push('{');
                for (i, (key, value)) in items.iter().enumerate() {
                    self.out.push_str(if i > 0 { ", {" } else { "{" });
                    self.bare(key);
                    self.out.push_str(", ");
                    self.bare(value);
                    self.out.push('}');
                }
                self.out.push('}');
            }
        }
    }

    fn sequence(&mut self, open: char, items: &[Literal], close: char) {
        self.out.push(open);
        for (i, item) in items.iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { "" });
            self.bare(item);
        }
        self.out.push(close);
    }

    fn string(&mut self, s: &str) {
        self.out.push('"');
        for c in s.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn elements(&mut self, dtype: DType, shape: &[usize], bytes: &[u8], at: &mut usize) {
        let Some((n, inner)) = shape.split_first() else {
            put!(self, "{}", element(dtype, bytes, *at));
            *at += 1;
            return;
        };
        self.out.push('[');
        for i in 0..*n {
            self.out.push_str(if i > 0 { ", " } else { "" });
            self.elements(dtype, inner, bytes, at);
        }
        self.out.push(']');
    }
}

/// Whether a constant goes to the weight file.
fn is_blob(ty: &TensorType, data: &Data, opset: Opset) -> bool {
    let inline = match ty.dtype {
        DType::Bool | DType::String | DType::Int64 | DType::Uint64 | DType::Fp64 => true,
        // Before ios18, weight files held only floats and bytes.
        DType::Int16 | DType::Int32 | DType::Uint16 | DType::Uint32 => opset < Opset::CoreMl8,
        _ => false,
    };
    let large = ty.rank() > 0 && ty.n_elements().is_some_and(|n| n >= MIN_BLOB_ELEMENTS);
    !inline && (large || !has_text(ty.dtype, data))
}

/// The text of element number `at` of packed `bytes`.
fn element(dtype: DType, bytes: &[u8], at: usize) -> String {
    // Only this NaN has a text form. Compare bits, because a cast could change the sign.
    if let Some(nan) = quiet_nan(dtype) {
        let sign = 1 << (dtype.bits() - 1);
        match read_bits(bytes, at, dtype.bits()) {
            bits if bits == nan => return "nan".to_owned(),
            bits if bits == nan | sign => return "-nan".to_owned(),
            _ => {}
        }
    }
    match dtype {
        DType::Bool => (bytes[at] != 0).to_string(),
        DType::Fp16 => hex_float(f64::from(f16_to_f32(read_bits(bytes, at, 16) as u16))),
        DType::Bf16 => hex_float(f64::from(f32::from_bits(
            (read_bits(bytes, at, 16) as u32) << 16,
        ))),
        DType::Fp32 => hex_float(f64::from(f32::from_bits(read_bits(bytes, at, 32) as u32))),
        DType::Fp64 => hex_float(f64::from_bits(read_bits(bytes, at, 64))),
        DType::Int4 | DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => {
            let shift = 64 - dtype.bits();
            ((read_bits(bytes, at, dtype.bits()) << shift).cast_signed() >> shift).to_string()
        }
        _ => read_bits(bytes, at, dtype.bits()).to_string(),
    }
}

/// The `width` bits of element number `at`, least significant bit first.
fn read_bits(bytes: &[u8], at: usize, width: usize) -> u64 {
    (0..width).fold(0, |v, i| {
        let bit = at * width + i;
        v | (u64::from(bytes[bit / 8] >> (bit % 8) & 1) << i)
    })
}

/// Formats a number like C99's `%a`.
fn hex_float(v: f64) -> String {
    let sign = if v.is_sign_negative() { "-" } else { "" };
    if v.is_infinite() {
        return format!("{sign}inf");
    }
    if v == 0.0 {
        return format!("{sign}0x0p+0");
    }
    let bits = v.to_bits();
    let (mut exponent, mut fraction) =
        (((bits >> 52) & 0x7ff) as i32 - 1023, bits & ((1 << 52) - 1));
    if exponent == -1023 {
        // A subnormal: shift the leading one to where the implicit bit is.
        let shift = fraction.leading_zeros() - 11;
        fraction = (fraction << shift) & ((1 << 52) - 1);
        exponent = -1022 - shift as i32;
    }
    let digits = format!("{fraction:013x}");
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    format!("{sign}0x1{point}{digits}p{exponent:+}")
}

//! Converts a program to protobuf messages.

use std::collections::{BTreeMap, HashSet};

use super::blob::Plan;
use super::proto::{self, binding};
use super::state;
use super::value::{is_blob, literal_to_proto, type_to_proto};
use crate::literal::Literal;
use crate::opset::Opset;
use crate::program::{Arg, BlockId, Function, Op, Program, ValueId};
use crate::types::Type;

/// Encodes a program that [`super::check`] accepts. Constants of the weight file are added to
/// `plan`.
pub(super) fn program(program: &Program, plan: &mut Plan) -> proto::Program {
    let program = &state::split(program);
    let opset = program
        .functions()
        .first()
        .map_or(Opset::CoreMl5, |f| f.opset);
    proto::Program {
        version: 1,
        attributes: literals(&program.attributes, opset, plan),
        functions: program
            .functions()
            .iter()
            .map(|f| (f.name.clone(), function(f, plan)))
            .collect(),
    }
}

/// The name of an opset in a model file.
pub(super) fn opset_name(opset: Opset) -> String {
    format!("CoreML{}", specification_version(opset) - 1)
}

/// The first version of the model file format that supports an opset.
pub(super) fn specification_version(opset: Opset) -> i32 {
    match opset {
        Opset::CoreMl5 => 6,
        Opset::CoreMl6 => 7,
        Opset::CoreMl7 => 8,
        Opset::CoreMl8 => 9,
    }
}

fn literals(
    attributes: &[(String, Literal)],
    opset: Opset,
    plan: &mut Plan,
) -> BTreeMap<String, proto::Value> {
    attributes
        .iter()
        .map(|(name, literal)| (name.clone(), literal_to_proto(literal, opset, plan)))
        .collect()
}

fn function(f: &Function, plan: &mut Plan) -> proto::Function {
    let attributes = literals(&f.attributes, f.opset, plan);
    let mut encoder = Encoder {
        f,
        plan,
        new_names: HashSet::new(),
        inlined: constexpr_operands(f),
    };
    let body = encoder.block(Function::BODY);
    proto::Function {
        inputs: f.body().inputs.iter().map(|v| encoder.named(*v)).collect(),
        opset: opset_name(f.opset),
        block_specializations: BTreeMap::from([(opset_name(f.opset), body)]),
        attributes,
    }
}

/// The constants that only constexpr ops use. Constexpr ops store their operands inline.
fn constexpr_operands(f: &Function) -> HashSet<ValueId> {
    let (mut operands, mut others) = (HashSet::new(), HashSet::new());
    for op in f.all_ops().into_iter().map(|id| f.op(id)) {
        if op.def.is_constexpr() {
            operands.extend(op.uses())
        } else {
            others.extend(op.uses())
        }
        op.blocks
            .iter()
            .for_each(|b| others.extend(&f.block(*b).outputs));
    }
    others.extend(&f.body().outputs);
    operands.retain(|v| !others.contains(v) && f.constant(*v).is_some());
    operands
}

struct Encoder<'a> {
    f: &'a Function,
    plan: &'a mut Plan,
    /// Names of the constants that the encoder generated for literal operands.
    new_names: HashSet<String>,
    inlined: HashSet<ValueId>,
}

impl Encoder<'_> {
    fn named(&self, value: ValueId) -> proto::NamedValueType {
        let value = self.f.value(value);
        named(&value.name, &value.ty)
    }

    fn block(&mut self, id: BlockId) -> proto::Block {
        let block = self.f.block(id);
        let mut operations = Vec::with_capacity(block.ops.len());
        for op in &block.ops {
            self.op(self.f.op(*op), &mut operations);
        }
        // The body's inputs are stored in the function.
        let inputs: &[ValueId] = if id == Function::BODY {
            &[]
        } else {
            &block.inputs
        };
        proto::Block {
            inputs: inputs.iter().map(|v| self.named(*v)).collect(),
            outputs: block
                .outputs
                .iter()
                .map(|v| self.f.value(*v).name.clone())
                .collect(),
            operations,
        }
    }

    fn op(&mut self, op: &Op, out: &mut Vec<proto::Operation>) {
        if op.def.is_const() && op.results.iter().all(|r| self.inlined.contains(r)) {
            return;
        }
        let mut operation = self.operation(op.def.name, &self.label(op), &op.results);
        for (param, arg) in op.def.params.iter().zip(&op.args) {
            let Some(arg) = arg else { continue };
            let name = param.name.to_owned();
            match inline_literal(self.f, op, arg) {
                Some(literal) if op.def.attributes => {
                    operation
                        .attributes
                        .insert(name, literal_to_proto(literal, self.f.opset, self.plan));
                }
                Some(literal) => {
                    let binding = self.literal_operand(op, param.name, literal, out);
                    operation.inputs.insert(name, argument([binding]));
                }
                None => {
                    let names = arg
                        .values()
                        .iter()
                        .map(|v| binding::Binding::Name(self.f.value(*v).name.clone()));
                    operation.inputs.insert(name, argument(names));
                }
            }
        }
        operation.blocks = op.blocks.iter().map(|b| self.block(*b)).collect();
        out.push(operation);
    }

    /// The attribute `name`, which every op in a file has.
    fn label(&self, op: &Op) -> String {
        let of_result = || {
            op.results
                .first()
                .map_or(op.def.name, |r| &self.f.value(*r).name)
        };
        op.name.as_deref().unwrap_or_else(of_result).to_owned()
    }

    fn operation(&self, ty: &str, name: &str, results: &[ValueId]) -> proto::Operation {
        let label = literal_to_proto(&Literal::string(name), self.f.opset, &mut Plan::default());
        proto::Operation {
            r#type: ty.to_owned(),
            outputs: results.iter().map(|r| self.named(*r)).collect(),
            attributes: BTreeMap::from([("name".to_owned(), label)]),
            ..proto::Operation::default()
        }
    }

    /// Encodes a literal operand. Only constexpr ops take an operand directly from the weight file;
    /// for other ops a large operand becomes a generated `const` op.
    fn literal_operand(
        &mut self,
        op: &Op,
        param: &str,
        literal: &Literal,
        out: &mut Vec<proto::Operation>,
    ) -> binding::Binding {
        let large = matches!(literal, Literal::Tensor(ty, _) if is_blob(ty, self.f.opset));
        let value = literal_to_proto(literal, self.f.opset, self.plan);
        if op.def.is_constexpr() || !large {
            return binding::Binding::Value(value);
        }
        let name = self.new_name(&format!(
            "{}_{param}",
            op.results
                .first()
                .map_or(op.def.name, |r| &self.f.value(*r).name)
        ));
        let mut constant = self.operation("const", &name, &[]);
        constant.outputs.push(named(&name, &literal.ty()));
        constant.attributes.insert("val".to_owned(), value);
        out.push(constant);
        binding::Binding::Name(name)
    }

    fn new_name(&mut self, base: &str) -> String {
        let free =
            |name: &String| !self.f.names.contains_key(name) && !self.new_names.contains(name);
        let numbered = (0..).map(|n| format!("{base}_{n}"));
        let name = numbered
            .into_iter()
            .find(free)
            .expect("a function has fewer names than there are numbers");
        self.new_names.insert(name.clone());
        name
    }
}

/// The literal that is stored inline for an argument: a literal, or the constant operand of a
/// constexpr op.
fn inline_literal<'a>(f: &'a Function, op: &Op, arg: &'a Arg) -> Option<&'a Literal> {
    match arg {
        Arg::Literal(literal) => Some(literal),
        Arg::Value(v) if op.def.is_constexpr() => f.constant(*v),
        _ => None,
    }
}

fn argument(bindings: impl IntoIterator<Item = binding::Binding>) -> proto::Argument {
    let arguments = bindings
        .into_iter()
        .map(|b| proto::Binding { binding: Some(b) })
        .collect();
    proto::Argument { arguments }
}

fn named(name: &str, ty: &Type) -> proto::NamedValueType {
    proto::NamedValueType {
        name: name.to_owned(),
        r#type: Some(type_to_proto(ty)),
    }
}

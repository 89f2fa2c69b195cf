//! Converts protobuf messages to a program. Types in the file must match the types that the ops'
//! rules infer.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use super::encode::opset_name;
use super::error::PackageError;
use super::proto::{self, binding};
use super::state;
pub(super) use super::value::Resolve;
use super::value::{literal_from_proto, type_from_proto};
use crate::build::BuildError;
use crate::literal::Literal;
use crate::opset::{self, Accepts, OpDef, Opset};
use crate::program::{Arg, BlockId, Function, Origin, Program, ValueId};
use crate::types::{Symbol, Type};
use crate::watch::Watch;

/// Maximum nesting of blocks.
const MAX_DEPTH: usize = 32;

/// Decodes the program of a model file. Functions are put in the order of `order`, the names in the
/// description.
pub(super) fn program(
    message: &proto::Program,
    order: &[&str],
    path: &Path,
    (resolve, watch): (Resolve<'_>, &Watch<'_>),
) -> Result<Program, PackageError> {
    let fail = |place: &str, reason: String| malformed(path, place, reason);
    if message.version != 1 {
        return Err(fail(
            "program",
            format!("expected version 1, found {}", message.version),
        ));
    }
    let mut names: Vec<&str> = message.functions.keys().map(String::as_str).collect();
    names.sort_by_key(|name| order.iter().position(|n| n == name).unwrap_or(usize::MAX));
    unknown_ops(message, path)?;
    let mut functions = Vec::new();
    for name in names {
        let place = format!("function `{name}`");
        let function = function(name, &message.functions[name], (&mut *resolve, watch));
        if watch.is_over() {
            PackageError::interrupted(path, watch)?;
        }
        functions.push(function.map_err(|e| fail(&format!("{place}{}", e.place), e.reason))?);
    }
    let mut program = Program::new(functions);
    program.attributes =
        literals(&message.attributes, resolve).map_err(|reason| fail("program", reason))?;
    Ok(program)
}

fn malformed(path: &Path, place: &str, reason: String) -> PackageError {
    PackageError::Malformed {
        path: path.to_owned(),
        place: place.to_owned(),
        reason,
    }
}

fn opset_of(function: &proto::Function) -> Option<Opset> {
    Opset::ALL
        .iter()
        .copied()
        .find(|o| opset_name(*o) == function.opset)
}

/// Returns an error that lists all unknown ops.
fn unknown_ops(message: &proto::Program, path: &Path) -> Result<(), PackageError> {
    let mut unknown = BTreeSet::new();
    for function in message.functions.values() {
        let Some(opset) = opset_of(function) else {
            continue;
        };
        let mut pending: Vec<&proto::Block> = function
            .block_specializations
            .get(&function.opset)
            .into_iter()
            .collect();
        while let Some(block) = pending.pop() {
            for op in &block.operations {
                pending.extend(&op.blocks);
                if opset::find_in(&op.r#type, opset).is_none() {
                    unknown.insert((op.r#type.as_str(), opset.name()));
                }
            }
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = unknown
        .iter()
        .take(40)
        .map(|(op, opset)| format!("`{op}` ({opset})"))
        .collect();
    Err(malformed(
        path,
        "program",
        format!("unknown ops: {}", list.join(", ")),
    ))
}

fn literals(
    attributes: &std::collections::BTreeMap<String, proto::Value>,
    resolve: Resolve<'_>,
) -> Result<Vec<(String, Literal)>, String> {
    let literal = |(name, value): (&String, &proto::Value)| {
        let literal =
            literal_from_proto(value, resolve).map_err(|e| format!("attribute `{name}`: {e}"))?;
        Ok((name.clone(), literal))
    };
    attributes.iter().map(literal).collect()
}

/// The reason of an error without the op and its result, which [`Fault::place`] names.
fn without_place(error: BuildError) -> String {
    match error {
        BuildError::Type { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}

/// An error and its place in the function.
struct Fault {
    place: String,
    reason: String,
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Self {
            place: String::new(),
            reason,
        }
    }
}

fn function(
    name: &str,
    message: &proto::Function,
    (resolve, watch): (Resolve<'_>, &Watch<'_>),
) -> Result<Function, Fault> {
    let opset = opset_of(message).ok_or_else(|| {
        let known: Vec<String> = Opset::ALL.iter().map(|o| opset_name(*o)).collect();
        format!(
            "expected an opset of {}, found {:?}",
            known.join(", "),
            message.opset
        )
    })?;
    let body = message
        .block_specializations
        .get(&message.opset)
        .ok_or_else(|| {
            let has: Vec<&String> = message.block_specializations.keys().take(9).collect();
            format!(
                "expected a body for opset {:?}, found bodies for {has:?}",
                message.opset
            )
        })?;
    if !body.inputs.is_empty() {
        return Err("expected a body without inputs of its own"
            .to_owned()
            .into());
    }
    let attributes = literals(&message.attributes, resolve)?;
    let mut decoder = Decoder {
        function: Function::new(name.to_owned(), opset),
        resolve,
        watch,
        values: HashMap::new(),
        closed: HashSet::new(),
        local: Vec::new(),
        depth: 0,
    };
    decoder.function.attributes = attributes;
    decoder.take_names(&message.inputs, body);
    decoder.inputs(Function::BODY, &message.inputs)?;
    decoder.block(Function::BODY, body)?;
    state::merge(&mut decoder.function);
    Ok(decoder.function)
}

struct Decoder<'a> {
    function: Function,
    resolve: Resolve<'a>,
    watch: &'a Watch<'a>,
    /// Visible names.
    values: HashMap<String, ValueId>,
    /// Names that closed blocks defined.
    closed: HashSet<String>,
    /// Names that the current block defined.
    local: Vec<String>,
    depth: usize,
}

/// An op as stored in the file.
struct OpParts<'a> {
    def: &'static OpDef,
    args: Vec<(&'static str, Arg)>,
    name: Option<String>,
    outputs: &'a [proto::NamedValueType],
}

impl Decoder<'_> {
    /// Reserves every name in the file, so that no generated name equals a later one.
    fn take_names(&mut self, inputs: &[proto::NamedValueType], body: &proto::Block) {
        let mut pending = vec![(inputs, body)];
        while let Some((inputs, block)) = pending.pop() {
            let outputs = block.operations.iter().flat_map(|op| &op.outputs);
            let names = inputs.iter().chain(outputs).map(|v| (v.name.clone(), 0));
            self.function.names.extend(names);
            pending.extend(
                block
                    .operations
                    .iter()
                    .flat_map(|op| &op.blocks)
                    .map(|b| (b.inputs.as_slice(), b)),
            );
        }
    }

    fn ty(&mut self, ty: Option<&proto::ValueType>) -> Result<Type, String> {
        let function = &mut self.function;
        type_from_proto(ty, &mut || function.fresh_symbol())
    }

    fn inputs(&mut self, block: BlockId, inputs: &[proto::NamedValueType]) -> Result<(), Fault> {
        for input in inputs {
            let ty = self
                .ty(input.r#type.as_ref())
                .map_err(|e| format!("input `{}`: {e}", input.name))?;
            let id = self.function.append_input(block, &input.name, ty);
            self.declare(&input.name, id)?;
        }
        Ok(())
    }

    fn declare(&mut self, name: &str, id: ValueId) -> Result<(), Fault> {
        if self.values.insert(name.to_owned(), id).is_some() {
            return Err(format!("`{name}` is defined twice").into());
        }
        self.local.push(name.to_owned());
        // A closed block may have used the name. In a [`Function`] every value has a name of its
        // own, so such a value keeps its generated name.
        if !self.closed.contains(name) {
            self.function.values[id.index()].name = name.to_owned();
        }
        Ok(())
    }

    fn value(&self, name: &str) -> Result<ValueId, String> {
        self.values
            .get(name)
            .copied()
            .ok_or_else(|| format!("`{name}` is used before it is defined"))
    }

    fn block(&mut self, id: BlockId, block: &proto::Block) -> Result<(), Fault> {
        for op in &block.operations {
            if self.watch.step() {
                return Err("the decoder was interrupted".to_owned().into());
            }
            self.op(id, op).map_err(|e| {
                // The innermost op determines the place.
                let result = op
                    .outputs
                    .first()
                    .map_or(String::new(), |r| format!(" `{}`", r.name));
                let place = if e.place.is_empty() {
                    format!(", op `{}`{result}", op.r#type)
                } else {
                    e.place
                };
                Fault {
                    place,
                    reason: e.reason,
                }
            })?;
        }
        let outputs = block
            .outputs
            .iter()
            .map(|name| self.value(name))
            .collect::<Result<_, _>>();
        self.function.blocks[id.index()].outputs = outputs.map_err(|e| format!("output {e}"))?;
        Ok(())
    }

    fn op(&mut self, block: BlockId, op: &proto::Operation) -> Result<(), Fault> {
        let opset = self.function.opset;
        let def = opset::find_in(&op.r#type, opset)
            .ok_or_else(|| format!("opset {} does not have this op", opset.name()))?;
        let mut parts = OpParts {
            def,
            args: Vec::new(),
            name: None,
            outputs: &op.outputs,
        };
        self.attributes(op, &mut parts)?;
        for (name, argument) in &op.inputs {
            parts.args.push(self.argument(block, def, name, argument)?);
        }
        let blocks = op
            .blocks
            .iter()
            .map(|b| self.nested(b))
            .collect::<Result<Vec<_>, _>>()?;
        self.append(block, parts, blocks)
    }

    fn attributes(&mut self, op: &proto::Operation, parts: &mut OpParts<'_>) -> Result<(), Fault> {
        for (name, value) in &op.attributes {
            let literal = literal_from_proto(value, self.resolve)
                .map_err(|e| format!("attribute `{name}`: {e}"))?;
            let param = parts
                .def
                .params
                .iter()
                .find(|p| parts.def.attributes && p.name == name)
                .map(|p| p.name);
            match (param, literal) {
                (Some(param), literal) => parts.args.push((param, Arg::Literal(literal))),
                (None, Literal::String(s)) if name == "name" => parts.name = Some(s),
                (None, _) if name == "name" => {
                    return Err("attribute `name`: expected a string".to_owned().into());
                }
                (None, _) => {
                    return Err(format!(
                        "the op has no attribute `{name}` in opset {}",
                        self.function.opset.name()
                    )
                    .into());
                }
            }
        }
        Ok(())
    }

    fn argument(
        &mut self,
        block: BlockId,
        def: &'static OpDef,
        name: &str,
        argument: &proto::Argument,
    ) -> Result<(&'static str, Arg), Fault> {
        let Some(param) = def
            .params
            .iter()
            .find(|p| p.name == name && !def.attributes)
        else {
            return Err(format!(
                "the op has no input `{name}` in opset {}",
                self.function.opset.name()
            )
            .into());
        };
        let mut args = Vec::with_capacity(argument.arguments.len());
        for binding in &argument.arguments {
            args.push(match binding.binding.as_ref() {
                Some(binding::Binding::Name(value)) => Arg::Value(
                    self.value(value)
                        .map_err(|e| format!("input `{name}`: {e}"))?,
                ),
                Some(binding::Binding::Value(value)) => Arg::Literal(
                    literal_from_proto(value, self.resolve)
                        .map_err(|e| format!("input `{name}`: {e}"))?,
                ),
                None => return Err(format!("input `{name}`: the binding is empty").into()),
            });
        }
        if param.accepts == Accepts::Tensors {
            let values = args.into_iter().map(|arg| self.as_value(block, name, arg));
            return Ok((
                param.name,
                Arg::Values(values.collect::<Result<_, Fault>>()?),
            ));
        }
        match <[Arg; 1]>::try_from(args) {
            Ok([arg]) => Ok((param.name, arg)),
            Err(args) => {
                Err(format!("input `{name}`: expected one value, found {}", args.len()).into())
            }
        }
    }

    /// Converts a member of a tuple to a value; a literal becomes a `const` op.
    fn as_value(&mut self, block: BlockId, name: &str, arg: Arg) -> Result<ValueId, Fault> {
        if let [value] = arg.values() {
            return Ok(*value);
        }
        let def = opset::find("const").expect("every opset has `const`");
        let id = self.function.append_op(
            block,
            def,
            vec![("val", arg)],
            Vec::new(),
            name,
            Origin::default(),
        );
        Ok(self.function.op(id.map_err(without_place)?).results[0])
    }

    fn nested(&mut self, message: &proto::Block) -> Result<BlockId, Fault> {
        if self.depth == MAX_DEPTH {
            return Err(format!("blocks are nested deeper than {MAX_DEPTH} levels").into());
        }
        self.depth += 1;
        let block = self.function.append_block();
        let outside = std::mem::take(&mut self.local);
        self.inputs(block, &message.inputs)?;
        self.block(block, message)?;
        for name in std::mem::replace(&mut self.local, outside) {
            self.values.remove(&name);
            self.closed.insert(name);
        }
        self.depth -= 1;
        Ok(block)
    }

    fn append(
        &mut self,
        block: BlockId,
        parts: OpParts<'_>,
        nested: Vec<BlockId>,
    ) -> Result<(), Fault> {
        let OpParts {
            def,
            args,
            name,
            outputs,
        } = parts;
        let first = outputs.first().map_or(def.name, |o| &o.name);
        let id = self
            .function
            .append_op(block, def, args, nested, first, Origin::default());
        let id = id.map_err(without_place)?;
        let results = self.function.op(id).results.clone();
        if results.len() != outputs.len() {
            return Err(format!(
                "expected {} results, found {}",
                results.len(),
                outputs.len()
            )
            .into());
        }
        for (output, result) in outputs.iter().zip(&results) {
            let declared = type_from_proto(output.r#type.as_ref(), &mut || Symbol(0));
            let declared = declared.map_err(|e| format!("result `{}`: {e}", output.name))?;
            let inferred = &mut self.function.values[result.index()].ty;
            if !inferred.compatible(&declared) {
                return Err(format!(
                    "`{}`: expected the inferred type {inferred}, found the declared type \
                     {declared}",
                    output.name
                )
                .into());
            }
            inferred.refine(&declared);
            self.declare(&output.name, *result)?;
        }
        // Ops in files have names, so an op without one gets the name that it would be written
        // with.
        let name_of_result = || {
            results
                .first()
                .map_or(def.name, |r| &self.function.value(*r).name)
                .to_owned()
        };
        self.function.ops[id.index()].name = Some(name.unwrap_or_else(name_of_result));
        Ok(())
    }
}

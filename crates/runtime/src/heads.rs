//! Output heads of functions of fixed length: whether they give what the contract says, and the
//! logits of final hidden states, which a function of the program computes here, so that the
//! backend's products do the work.

use std::collections::BTreeMap;

use thane_calls::{Call, Head, HostHead};
use thane_engine::chain::Rows;
use thane_mil::build::{BuildError, FunctionBuilder};
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::lower;
use thane_mil::opset::Opset;
use thane_mil::program::{Arg, Function, Program, ValueId};
use thane_mil::types::{DType, TensorType};

use crate::contract::{Port, Ports};
use crate::tables::{HostTable, Stored, Tables};

/// The name of the function that takes `n` tokens, which no package has. Each number of tokens has
/// one, so that a backend keeps the matrix in the form that suits it.
pub fn function_name(n: usize) -> String {
    format!("host_head_{n}")
}

/// The name of its input, and the role of the output that it takes.
pub const INPUT: &str = "final_hidden_states";

/// What a call gives of the logits must be those of its tokens, and of the whole vocabulary.
///
/// # Errors
///
/// In words, if they are not.
pub fn check_outputs(
    (call, head): (&Call, &Head<HostHead>),
    functions: &BTreeMap<String, Ports>,
    (tables, vocab_size): (&Tables, usize),
) -> Result<(), String> {
    let n_rows = call.n_given();
    let of_role = |role: &'static str| -> Vec<&Port> {
        let outputs = call.functions.iter().flat_map(|f| &functions[f].outputs);
        outputs.filter(|port| port.role == role).collect()
    };
    let whole = call.functions.join(", ");
    let wrong = |expected: String, port: &Port| {
        let found = dims(&port.shape);
        Err(format!(
            "expected {expected} of a call of {whole}, found {found}"
        ))
    };
    match head {
        Head::Logits => {
            let mut n_found = 0usize;
            for port in of_role("logits") {
                match port.shape.as_slice() {
                    [Some(1), Some(rows), Some(n)] if *rows == n_rows => {
                        n_found = n_found.saturating_add(*n);
                    }
                    _ => return wrong(format!("logits [1, {n_rows}, ..]"), port),
                }
            }
            if n_found == vocab_size {
                return Ok(());
            }
            Err(format!(
                "expected {vocab_size} logits of a call of {whole}, found {n_found}"
            ))
        }
        Head::Greatest(n) => {
            let (values, tokens) = (of_role("top_logits"), of_role("top_tokens"));
            let n_known = (1..=vocab_size).contains(n);
            if !n_known || tokens.is_empty() || tokens.len() != values.len() {
                return Err(format!(
                    "expected the {n} greatest logits and their tokens of a call of {whole}, found \
                     {} outputs of logits and {} of tokens",
                    values.len(),
                    tokens.len()
                ));
            }
            for port in values.iter().chain(&tokens) {
                match port.shape.as_slice() {
                    [Some(1), Some(rows), Some(1..)] if *rows == n_rows => {}
                    _ => return wrong(format!("the greatest logits [1, {n_rows}, ..]"), port),
                }
            }
            if let Some((a, b)) = values.iter().zip(&tokens).find(|(a, b)| a.shape != b.shape) {
                return wrong(format!("as many tokens as logits {}", dims(&a.shape)), b);
            }
            check_n_greatest(*n, &tokens, (&whole, vocab_size))
        }
        Head::Host(head) => {
            let (matrix, _) = checked(head, tables, vocab_size)?;
            let hidden = matrix.n_columns();
            match of_role(INPUT)[..] {
                [port] if port.shape == [Some(1), Some(hidden), Some(1), Some(n_rows)] => Ok(()),
                [port] => wrong(
                    format!("final hidden states [1, {hidden}, 1, {n_rows}]"),
                    port,
                ),
                [] => Err(format!(
                    "expected final hidden states of a call of {whole}, found none"
                )),
                _ => Err(format!(
                    "expected final hidden states of one function of {whole} only"
                )),
            }
        }
    }
}

/// The `n` greatest logits are among what parts of the vocabulary give: each part gives as many, or
/// all of its logits if it has fewer.
fn check_n_greatest(
    n: usize,
    tokens: &[&Port],
    (whole, vocab_size): (&str, usize),
) -> Result<(), String> {
    let n_columns = tokens.iter().filter_map(|port| *port.shape.last()?);
    let most = n_columns.clone().max().unwrap_or(0);
    if most >= n || n_columns.fold(0, usize::saturating_add) == vocab_size {
        return Ok(());
    }
    Err(format!(
        "expected the {n} greatest logits of a call of {whole}, found {most}"
    ))
}

/// `program` with the functions that compute logits, [1, n, vocabulary] in fp32, from the final
/// hidden states of n tokens, [1, hidden, 1, n], one for each n that its functions give.
///
/// # Errors
///
/// In words, if tables are missing or do not fit.
pub fn with_head(
    program: &Program,
    head: &HostHead,
    (tables, vocab_size): (&Tables, usize),
) -> Result<Program, String> {
    let (matrix, bias) = checked(head, tables, vocab_size)?;
    let heads = given(program)
        .into_iter()
        .map(|(n, states)| function(head, (matrix, bias), (n, states)));
    let heads = heads.collect::<Result<Vec<Function>, BuildError>>();
    let heads = heads.map_err(|e| format!("the output head is not a legal program: {e}"))?;
    // All functions of a program are in one opset.
    let lifted = lower::with_opset(program, Opset::CoreMl8);
    let lifted = lifted.map_err(|violations| {
        let first = violations.first().map(ToString::to_string);
        first.unwrap_or_default()
    })?;
    let functions = lifted.functions().iter().cloned().chain(heads);
    Ok(Program::new(functions.collect()))
}

/// The numbers of tokens whose final hidden states functions give, with their element type.
fn given(program: &Program) -> BTreeMap<usize, DType> {
    let functions = program.functions().iter();
    let outputs = functions.flat_map(|f| f.body().outputs.iter().map(|v| f.value(*v)));
    let states = outputs.filter(|output| output.name == INPUT);
    let types = states.filter_map(|output| output.ty.tensor());
    let sizes = types.filter_map(|ty| Some((ty.shape.last()?.known()?, ty.dtype)));
    sizes.collect()
}

/// Dimensions as a user reads them: `[1, 48, ?]`.
pub(crate) fn dims(shape: &[Option<usize>]) -> String {
    let each = shape
        .iter()
        .map(|d| d.map_or("?".to_owned(), |n| n.to_string()));
    format!("[{}]", each.collect::<Vec<String>>().join(", "))
}

/// The tables of a head.
///
/// # Errors
///
/// In words, if tables are missing or do not fit.
pub fn checked<'t>(
    head: &HostHead,
    tables: &'t Tables,
    vocab_size: usize,
) -> Result<(&'t HostTable, Option<&'t HostTable>), String> {
    let found = |name: &String| {
        let table = tables.get(name);
        let table = table.ok_or_else(|| {
            format!("expected the table {name}.npy, from which logits are computed, found none")
        })?;
        let rows = table.n_rows();
        if table.dtype == DType::Int8 {
            return Err(format!(
                "expected fp16 or fp32 in the table {name}.npy, from which logits are computed, \
                 found int8"
            ));
        }
        if !matches!(table.parts[..], [Stored::Plain(_)]) {
            return Err(format!(
                "expected the table {name}.npy, from which logits are computed, found its rows in \
                 the weight file"
            ));
        }
        if rows == vocab_size {
            return Ok(&**table);
        }
        Err(format!(
            "expected {vocab_size} rows in the table {name}.npy, one for each token, found {rows}"
        ))
    };
    let fits = |x: f32| x.is_normal();
    if !fits(head.factor) || head.soft_cap.is_some_and(|x| !fits(x) || x < 0.0) {
        return Err(format!(
            "expected a finite factor of logits, and a soft cap above 0 or none, found {} and {:?}",
            head.factor, head.soft_cap
        ));
    }
    let matrix = found(&head.matrix)?;
    let bias = head.bias.as_ref().map(found).transpose()?;
    match bias.map(|bias| bias.n_columns()) {
        None | Some(1) => Ok((matrix, bias)),
        Some(n) => Err(format!(
            "expected one column in the table of the head's bias, found {n}"
        )),
    }
}

fn function(
    head: &HostHead,
    (matrix, bias): (&HostTable, Option<&HostTable>),
    (n, states): (usize, DType),
) -> Result<Function, BuildError> {
    let mut b = FunctionBuilder::new(function_name(n), Opset::CoreMl8);
    b.set_place("lm_head");
    let (n_rows, hidden) = (matrix.n_rows(), matrix.n_columns());
    let x = b.input(INPUT, TensorType::new(states, [1, hidden, 1, n]));
    let args = [("x", x), ("axes", b.constant("axes", Literal::i32s(&[2]))?)];
    let x = op(&mut b, "squeeze", args)?;
    let args = [
        ("x", x),
        ("perm", b.constant("perm", Literal::i32s(&[0, 2, 1]))?),
    ];
    let mut x = op(&mut b, "transpose", args)?; // [1, n, hidden]
    if states != DType::Fp32 {
        let dtype = b.constant("dtype", Literal::string("fp32"))?;
        x = op(&mut b, "cast", [("x", x), ("dtype", dtype)])?;
    }
    let weight = constant(&mut b, matrix, &[n_rows, hidden])?;
    let mut logits = match bias {
        None => op(&mut b, "linear", [("x", x), ("weight", weight)])?,
        Some(bias) => {
            let bias = constant(&mut b, bias, &[n_rows])?;
            op(
                &mut b,
                "linear",
                [("x", x), ("weight", weight), ("bias", bias)],
            )?
        }
    };
    let scale = |b: &mut FunctionBuilder, x: ValueId, factor: f32| {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = number(b, factor)?;
        op(b, "mul", [("x", x), ("y", factor)])
    };
    logits = scale(&mut b, logits, head.factor)?;
    if let Some(cap) = head.soft_cap {
        let inner = scale(&mut b, logits, cap.recip())?;
        let bounded = op(&mut b, "tanh", [("x", inner)])?;
        logits = scale(&mut b, bounded, cap)?;
    }
    Ok(b.finish(&[("logits", logits)]))
}

fn op<const N: usize>(
    b: &mut FunctionBuilder,
    name: &str,
    args: [(&'static str, ValueId); N],
) -> Result<ValueId, BuildError> {
    b.op(
        name,
        name,
        args.map(|(param, value)| (param, Arg::Value(value))),
    )
}

fn number(b: &mut FunctionBuilder, x: f32) -> Result<ValueId, BuildError> {
    let ty = TensorType::scalar(DType::Fp32);
    let data = Data::owned(x.to_le_bytes().to_vec());
    b.constant("number", Literal::Tensor(ty, data))
}

/// A table as a constant in fp32, without a copy of its bytes.
fn constant(
    b: &mut FunctionBuilder,
    table: &HostTable,
    shape: &[usize],
) -> Result<ValueId, BuildError> {
    let ty = TensorType::new(table.dtype, shape.iter().copied());
    // `checked` has refused a table in several parts.
    let data = match table.parts.first() {
        Some(Stored::Plain(data)) => data.clone(),
        _ => Data::zeros(0),
    };
    let stored = b.constant("matrix", Literal::Tensor(ty, data))?;
    if table.dtype == DType::Fp32 {
        return Ok(stored);
    }
    let dtype = b.constant("dtype", Literal::string("fp32"))?;
    let args = [("source_val", stored), ("output_dtype", dtype)];
    op(b, "constexpr_cast", args)
}

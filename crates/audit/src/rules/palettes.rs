//! Rules about palettes: the shapes of their tables, the types of their entries, and their speed.

use thane_mil::program::{Op, OpId};
use thane_mil::types::DType;

use super::query::{
    int, is_any, kind, param_shape, param_type, product, result_shape, users, wrap,
};
use super::{ROW, row};
use crate::rule::Effect::{CompileFails, ProgramLeaves, Slow};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Rule, Scope};
use crate::view::View;
use crate::weight::{Encoding, Stored};

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE087",
        title: "A palette for each channel",
        source: "cadamcat/llms-on-apple-neural-engine, M5 Pro, macOS 27: 0.065 to 0.45 times the \
            speed of fp16; oxinfer, M5 Max, macOS 26: decode at half the speed of a table for 8 \
            channels",
        disputed: "CoreML-LLM ships tables for groups of 32 channels, and 751K measures grouped \
            tables at 0.32 of the time of fp16",
        why: "One table for each output channel ran 2 to 15 times slower than fp16.",
        fix: "Use one table for the tensor, tables for groups of 16 or 32 channels, or int4 with a \
            scale for each channel.",
        check: Check::Op(|v, op| {
            let (groups, weight) = lut_groups(v, op)?;
            let tables = *groups.first()?;
            (tables > 1 && weight.first() == Some(&tables))
                .then(|| format!("a palette for each of {tables} channels"))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE088",
        title: "Palettes for blocks of several axes",
        source: "751K M6 study; CoreML-LLM Q02: code -14 with a state",
        why: "Tables for rows and blocks of columns at once do not compile for the engine; the \
            model goes to the CPU or GPU, or fails with -14.",
        fix: "Group channels only: one table, or tables along the output channels.",
        check: Check::Op(|v, op| {
            let (groups, _) = lut_groups(v, op)?;
            (groups.iter().filter(|g| **g > 1).count() > 1)
                .then(|| format!("palettes for blocks in a grid of {groups:?}"))
        }),
        ..row(ProgramLeaves, Error)
    },
    Rule {
        id: "ANE089",
        title: "Palettes of vectors",
        source: "751K M6 study: does not compile through Core ML, though the hardware table knows \
            vectors up to 4 from M5 on",
        disputed: "anemll-forge, macOS 27: M6 runs vectors at the speed of scalars of as many \
            index bits, M5 Max takes them without a gain (ANE158 has the shapes)",
        why: "A table whose entries are vectors did not compile for the engine in one study, and \
            ran on M6 in another.",
        fix: "Use scalar tables of 4 or 6 bits, or check on the device that vectors run.",
        check: Check::Op(|v, op| {
            let lut = param_shape(v, op, "lut")?;
            let vector = *lut.last().filter(|_| lut.len() > 2)?;
            (kind(v, op).starts_with("constexpr_lut") && vector > 1)
                .then(|| format!("palette entries are vectors of {vector} numbers"))
        }),
        ..row(ProgramLeaves, Error)
    },
    Rule {
        id: "ANE090",
        title: "Palettes of int8 entries",
        source: "CoreML-LLM Q04: 73 ops left the engine, 3.4 % slower, cosine 0.83; iPhone 17 \
            Pro. anemll-forge, M6, macOS 27: int8 entries run on the engine by Core ML where the \
            table is scaled before the lookup, and leave it where the scale follows",
        disputed: "anemll-forge: through Core AI int8 entries leave the engine whatever the order",
        why: "With a table of int8 entries that a scale then multiplies (joint compression), the \
            ops that use the weight left the engine.",
        fix: "Scale the table, not the weight: constexpr_blockwise_shift_scale of the table, then \
            constexpr_lut_to_dense. Or keep the entries in fp16.",
        check: Check::Op(|v, op| {
            let heavy = is_any(v, op, &["conv", "linear", "matmul", "conv_transpose"]);
            let codes = v
                .op(op)
                .uses()
                .filter_map(|u| v.f.definer(u))
                .find(|d| is_joint(v, d))?;
            heavy.then(|| {
                format!(
                    "its weight goes through `{}` over a palette of 8-bit entries",
                    codes.def.name
                )
            })
        }),
        ..ROW
    },
    Rule {
        id: "ANE091",
        title: "3-bit palettes before M6 and A19",
        scope: Scope::generations(0, 17),
        source: "751K M6 study: 3-bit codes are kept as 4-bit before that generation; oxinfer, M5 \
            Max: 0.81 GB at 3 bits, 0.84 GB at 4, 0.47 GB at 2 for 1.5 billion weights",
        why: "The codes are widened to 4 bits: the accuracy of 3 bits at the speed of 4.",
        fix: "Use 4 bits, or 2.",
        check: Check::Op(|v, op| {
            let codes = param_type(v, op, "indices")?;
            (codes.dtype == DType::Uint3).then(|| "3-bit codes take 4 bits on this chip".to_owned())
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE092",
        title: "Sparse and palettized at once",
        source: "CoreML-LLM Q05: 155.8 to 349.6 MB, 11 % slower, cosine 0.449; iPhone 17 Pro",
        why: "Masks and palettes together made the file twice as large and the call slower.",
        fix: "Use one of the two; a mask alone gains from 50 % zeros on (0.56 of the bytes).",
        check: Check::Op(|v, op| {
            is_any(
                v,
                op,
                &[
                    "constexpr_lut_to_sparse",
                    "constexpr_sparse_blockwise_shift_scale",
                ],
            )
            .then(|| format!("`{}`: weights both sparse and palettized", kind(v, op)))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE158",
        title: "Vector palettes of a shape that the engine does not take",
        scope: Scope::generations(17, u8::MAX),
        source: "anemll-forge, M6 and M5 Max, macOS 27: vectors of at most 16 numbers, at most 256 \
            numbers in the table, along output channels, one table for the tensor",
        why: "The engine decodes vectors from one small table and writes each vector down the \
            output channels. Other shapes fail to compile, or Core ML runs them on the CPU.",
        fix: "Use one table of at most 256 numbers with vectors of at most 16 along axis 0, or \
            scalar tables.",
        check: Check::Op(vector_fault),
        ..row(CompileFails(Some("ANECCompile() FAILED")), Error)
    },
    Rule {
        id: "ANE159",
        title: "Palettes for groups of channels on M6 and A19",
        scope: Scope::generations(18, u8::MAX),
        source: "anemll-forge, M6, macOS 27, MLP of a 27B model at 4 bits: 0.847 ms with one \
            table and a scale for each channel behind the product; groups of 128 to 1024 rows take \
            19 to 21 % longer, groups of 8 rows 47 %",
        disputed: "751K M6 study: grouped tables take 0.32 of the time of fp16, as one table does",
        why: "With one table for the tensor and a scale for each output channel behind the \
            product, a call was faster than with a table for each group.",
        fix: "Use one table for the tensor and multiply the result of the product by a scale for \
            each channel.",
        check: Check::Op(|v, op| {
            let (tables, channels) = row_tables(v, op)?;
            (tables < channels).then(|| format!("{tables} palettes for {channels} channels"))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE160",
        title: "Palettes for groups of fewer than 8 channels on M5 and A18",
        scope: Scope::generations(17, 17),
        source: "oxinfer, M5 Max, macOS 26: a table for 8 channels decodes as fast as ANEMLL's \
            packages, a table for 2 channels about 25 % slower",
        why: "The smaller the group, the more tables are loaded for the same weights.",
        fix: "Use groups of 8 channels or more.",
        check: Check::Op(|v, op| {
            let (tables, channels) = row_tables(v, op)?;
            let group = channels / tables;
            (2..8)
                .contains(&group)
                .then(|| format!("a palette for every {group} channels: 8 lose no speed"))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE161",
        title: "Palettes below 8 bits on M5 and A18",
        scope: Scope::generations(17, 17),
        source: "anemll-forge, M5 Max, macOS 27.2, 4096x4096: 0.211 ms in fp16, 0.109 ms in int8, \
            0.108 to 0.112 ms with palettes of 0.5 to 4 bits a weight; oxinfer, M5 Max, macOS 26: \
            116 tokens/s at 4 and at 6 bits",
        disputed: "ANEForge, M5 Pro through e5rt: 4-bit palettes 1.6 to 1.8 times as fast as fp16, \
            int8 no faster than fp16",
        why: "On M5 Max every palette took as long as int8 weights, half the time of fp16. Fewer \
            bits save memory, not time.",
        fix: "Choose 6 or 8 bits where memory allows: the better accuracy costs no time.",
        check: Check::Op(|v, op| {
            let result = *v.op(op).results.first()?;
            let Encoding::Palette { bits, .. } = Stored::of(v.f, result).encoding else {
                return None;
            };
            let large = product(&v.known_shape(result)?) >= 1e6;
            (bits < 8 && large).then(|| format!("{bits}-bit palette: no faster than 8 bits"))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE172",
        title: "Palettes for groups of input channels",
        scope: Scope::generations(18, u8::MAX),
        source: "anemll-forge, M6, macOS 27: any grouping along input channels falls to the CPU",
        why: "The engine takes one table for the tensor, or tables for groups of output channels.",
        fix: "Group output channels, or use one table.",
        check: Check::Op(|v, op| {
            let (groups, _) = lut_groups(v, op)?;
            let (output, input) = channel_axes(v, op, groups.len())?;
            let (rows, columns) = (*groups.get(output)?, *groups.get(input)?);
            (rows == 1 && columns > 1)
                .then(|| format!("palettes for {columns} groups of input channels"))
        }),
        ..row(ProgramLeaves, Error)
    },
];

/// What the engine does not take of the vectors of a palette.
fn vector_fault(v: &View<'_>, op: OpId) -> Option<String> {
    let lut = param_shape(v, op, "lut").filter(|_| kind(v, op).starts_with("constexpr_lut"))?;
    let [groups @ .., n_entries, size] = lut.as_slice() else {
        return None;
    };
    if groups.is_empty() || *size < 2 {
        return None;
    }
    let tables = product(groups);
    let axis = wrap(int(v, op, "vector_axis")?, groups.len())?;
    let by_channel = || users(v, op).any(|u| is_any(v, u, &["conv", "linear"]));
    if *size > 16 {
        Some(format!("vectors of {size} numbers: 16 are the most"))
    } else if product(&[*n_entries, *size]) > 256.0 {
        Some(format!(
            "{n_entries} vectors of {size} numbers: 256 numbers are the most"
        ))
    } else if tables > 1.0 {
        Some(format!("vectors in {tables} tables: 1 is the most"))
    } else if axis != 0 && by_channel() {
        Some(format!(
            "vectors along axis {axis}: output channels are axis 0"
        ))
    } else {
        None
    }
}

/// Tables and channels of a palette of numbers that has tables along the output channels alone.
fn row_tables(v: &View<'_>, op: OpId) -> Option<(usize, usize)> {
    let (mut groups, weight) = lut_groups(v, op)?;
    let scalar = param_shape(v, op, "lut")?.last() == Some(&1);
    let (output, _) = channel_axes(v, op, groups.len())?;
    let (tables, channels) = (*groups.get(output)?, *weight.get(output)?);
    groups.remove(output);
    let rows_alone = tables > 1 && groups.iter().all(|g| *g == 1);
    (scalar && rows_alone).then_some((tables, channels))
}

/// The axes of output and input channels of a weight of this rank, by the op that multiplies with
/// it; other constexpr ops may stand between. A table that is only looked up has neither.
fn channel_axes(v: &View<'_>, weight: OpId, rank: usize) -> Option<(usize, usize)> {
    let value = *v.op(weight).results.first()?;
    let is = |op: OpId, name: &str| v.op(op).value_arg(name) == Some(value);
    let flag = |op: OpId, name: &str| int(v, op, name) == Some(1);
    let (rows, columns) = (rank.checked_sub(2), rank.checked_sub(1));
    users(v, weight).find_map(|op| match kind(v, op) {
        "conv" | "linear" if is(op, "weight") => Some((0, 1)),
        "conv_transpose" if is(op, "weight") => Some((1, 0)),
        "matmul" if is(op, "y") && !flag(op, "transpose_y") => columns.zip(rows),
        "matmul" if is(op, "y") => rows.zip(columns),
        "matmul" if is(op, "x") && !flag(op, "transpose_x") => rows.zip(columns),
        "matmul" if is(op, "x") => columns.zip(rows),
        name if name.starts_with("constexpr") => channel_axes(v, op, rank),
        _ => None,
    })
}

/// The grid of tables of a palette, and the shape of what it gives.
fn lut_groups(v: &View<'_>, op: OpId) -> Option<(Vec<usize>, Vec<usize>)> {
    let lut = param_shape(v, op, "lut").filter(|_| kind(v, op).starts_with("constexpr_lut"))?;
    let groups = lut.len().checked_sub(2).filter(|n| *n > 0)?;
    Some((lut[..groups].to_vec(), result_shape(v, op)?))
}

/// Whether a constexpr op scales what a palette of 8-bit entries gives.
fn is_joint(v: &View<'_>, op: &Op) -> bool {
    let codes = op.value_arg("data").and_then(|d| v.f.definer(d));
    let of_palette = codes.is_some_and(|d| d.def.name == "constexpr_lut_to_dense");
    op.def.name == "constexpr_blockwise_shift_scale" && of_palette
}

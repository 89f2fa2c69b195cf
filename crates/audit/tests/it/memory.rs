//! The memory of programs by route, as reports have it.

use thane_audit::report::memory::MemoryRow;
use thane_audit::report::{Part, Scope, Subject, build};
use thane_audit::target::{Route, Target, Units};
use thane_audit::{View, latency};
use thane_mil::text::parse;

use crate::rules::constant;

/// Bytes of the matrix of a function.
const MATRIX: f64 = 2.0 * 4096.0 * 1024.0;

/// Rows of a program with a function for each seed of its matrix.
fn rows(seeds: &[u64], target: &str) -> Vec<MemoryRow> {
    let function = |(at, seed): (usize, &u64)| {
        let ty = "tensor<fp16, [4096, 1024, 1, 1]>";
        format!(
            "func f{at}<ios18>(tensor<fp16, [1, 1024, 1, 32]> x) {{ {ty} w = const()[val = \
             {ty}(BLOBFILE(path = string(\"noise\"), offset = uint64({seed})))]; \
             tensor<fp16, [1, 4096, 1, 32]> y = conv(x = x, weight = w); }} -> (y);"
        )
    };
    let functions: String = seeds.iter().enumerate().map(function).collect();
    let program = parse(&format!("program(1.3) {{ {functions} }}"), &constant).unwrap();
    let subject = Subject::new("text", "text", vec![Part::new(program)]);
    let target = Target::parse(target, Units::All, Route::CoreMl).unwrap();
    build(&subject, &[target], Scope::default())
        .targets
        .remove(0)
        .memory
}

/// Core ML holds a copy of the weights for each function, Core AI one of those that are equal.
#[test]
fn routes_differ_in_copies_of_weights() {
    let cases: [(&[u64], [f64; 3]); 3] = [
        (&[1], [1.0, 1.0, 1.0]),
        (&[1, 1, 1, 1], [4.0, 1.0, 4.0]),
        (&[1, 2, 1], [3.0, 2.0, 3.0]),
    ];
    for (seeds, copies) in cases {
        let rows = rows(seeds, "m6+macos27");
        assert_eq!(rows.len(), 3);
        for (row, copies) in rows.iter().zip(copies) {
            let found = row.weight_bytes / (1.12 * MATRIX);
            assert!((found - copies).abs() < 1e-9, "{seeds:?}, {row:?}");
            assert!(row.low_bytes <= row.bytes && row.bytes <= row.high_bytes);
            assert_eq!(row.functions, seeds.len());
        }
        let shares = copies[0] > copies[1];
        assert_eq!(rows[0].disputed.is_some(), shares, "{seeds:?}");
        let evidence: Vec<&str> = rows.iter().map(|row| row.evidence).collect();
        assert_eq!(evidence, ["measured", "measured", "inferred"]);
    }
}

/// Rows of a program that looks two rows up in a table of 64,000 by 256, from a palette or as it
/// is, and its function's time in milliseconds and peak bytes.
fn lookup(table: &str, target: &str) -> (Vec<MemoryRow>, f64, f64) {
    let text = format!(
        "program(1.3) {{ func main<ios18>(tensor<int32, [2]> i) {{ {table} \
         tensor<fp16, [2, 256]> y = gather(x = t, indices = i, axis = int32(0)); }} -> (y); }}"
    );
    let program = parse(&text, &constant).unwrap();
    let subject = Subject::new("text", "text", vec![Part::new(program)]);
    let target = Target::parse(target, Units::CpuAndNeuralEngine, Route::CoreMl).unwrap();
    let mut report = build(&subject, &[target], Scope::default());
    let target = report.targets.remove(0);
    let latency = &target.functions[0].latency;
    let (ms, peak) = (latency.ms, latency.peak_bytes);
    (target.memory, ms, peak)
}

/// A lookup takes the time of the rows that it reads, and the table is in memory: mapped where it
/// is dense, expanded where it is compressed.
#[test]
fn tables_of_lookups_take_memory_and_not_time() {
    const TABLE: f64 = 2.0 * 64_000.0 * 256.0;
    let ty = "tensor<fp16, [64000, 256]>";
    let dense = format!(
        "{ty} t = const()[val = {ty}(BLOBFILE(path = string(\"noise\"), offset = uint64(1)))];"
    );
    let codes = "tensor<uint4, [64000, 256]>";
    let palette = format!(
        "{ty} t = constexpr_lut_to_dense(indices = {codes}(BLOBFILE(path = string(\"zeros\"), \
         offset = uint64(1))), lut = tensor<fp16, [1, 1, 16, 1]>(BLOBFILE(path = \
         string(\"noise\"), offset = uint64(2))));"
    );
    for (table, least) in [(dense, 0.0), (palette, TABLE)] {
        let (rows, ms, peak) = lookup(&table, "m4+macos27");
        assert!(ms < 0.1, "{ms} ms");
        assert!((TABLE..TABLE + 1e4).contains(&peak), "{peak}");
        for row in rows {
            assert_eq!(row.table_bytes, TABLE, "{row:?}");
            assert!((TABLE..TABLE + 1e4).contains(&row.bytes), "{row:?}");
            assert!((least..least + 1e4).contains(&row.low_bytes), "{row:?}");
        }
    }
}

/// Wherever a lookup runs, it reads its rows alone, and more rows take longer.
#[test]
fn lookups_take_the_time_of_their_rows_on_every_unit() {
    let ms = |rows: usize, units, route| {
        let text = format!(
            "program(1.3) {{ func main<ios18>(tensor<int32, [{rows}]> i) {{
             tensor<fp16, [163840, 1024]> t = const()[val = tensor<fp16, [163840, 1024]>(BLOBFILE(
             path = string(\"noise\"), offset = uint64(1)))];
             tensor<fp16, [{rows}, 1024]> y = gather(x = t, indices = i, axis = int32(0));
             }} -> (y); }}"
        );
        let program = parse(&text, &constant).unwrap();
        let target = Target::parse("m4+macos27", units, route).unwrap();
        let view = View::new(&program, &program.functions()[0], &target);
        // Without findings, so that the engine takes it too.
        latency::predict(&view, &thane_audit::place::place(&view, &[])).ms
    };
    for (units, route) in [
        (Units::CpuOnly, Route::CoreMl),
        (Units::CpuAndGpu, Route::CoreMl),
        (Units::CpuAndNeuralEngine, Route::Direct),
    ] {
        let (one, many) = (ms(1, units, route), ms(16_384, units, route));
        // All 335 MB would take 5 ms, and 34 MB take 0.3 ms at least on each unit.
        assert!(one < 0.2, "{units:?} {route:?}: {one} ms");
        assert!(many > one + 0.2, "{units:?} {route:?}: {one}, {many} ms");
    }
}

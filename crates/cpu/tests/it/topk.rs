//! The op `topk` against a selection that looks for the best element again and again.

use thane_cpu::Numerics;
use thane_mil::text::parse;
use thane_mil::valid;

use crate::golden::instance;

/// The next of a line: the first of the best that was not taken yet, NaN only where nothing else is
/// left.
fn best(line: &[f32], taken: &[bool], ascending: bool) -> usize {
    let left = || (0..line.len()).filter(|i| !taken[*i]);
    let mut numbers = left().filter(|i| !line[*i].is_nan());
    let Some(first) = numbers.next() else {
        return left().next().unwrap();
    };
    numbers.fold(first, |best, i| {
        let is_better = if ascending {
            line[i] < line[best]
        } else {
            line[i] > line[best]
        };
        if is_better { i } else { best }
    })
}

/// Elements of which many are equal, and some no numbers.
fn elements(n: usize, n_distinct: u64, state: &mut u64) -> Vec<f32> {
    let mut bits = || {
        // Multiplier and increment of Knuth's MMIX.
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    };
    let element = |_| match bits() % 40 {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        3 => -0.0,
        _ => (bits() % n_distinct) as f32 - n_distinct as f32 / 2.0,
    };
    (0..n).map(element).collect()
}

/// The `k` first of each line of `n`: values and indices, line by line.
fn selected(lines: &[Vec<f32>], k: usize, ascending: bool) -> Vec<Vec<(f32, i32)>> {
    let of_line = |line: &Vec<f32>| {
        let mut taken = vec![false; line.len()];
        let next = |_| {
            let at = best(line, &taken, ascending);
            taken[at] = true;
            (line[at], at as i32)
        };
        (0..k).map(next).collect()
    };
    lines.iter().map(of_line).collect()
}

/// Row-major elements of [lines, elements], or with the lines as columns.
fn laid_out<T: Copy>(lines: &[Vec<T>], are_columns: bool) -> Vec<T> {
    if !are_columns {
        return lines.concat();
    }
    let row = |i: usize| lines.iter().map(move |line| line[i]);
    (0..lines[0].len()).flat_map(row).collect()
}

#[test]
fn the_greatest_are_found_in_order() {
    let mut state = 3;
    for (n_lines, n) in [(1, 1), (3, 7), (2, 300), (1, 1000)] {
        for k in [1, 2, 5, 255, 256, 257, n] {
            for case in 0..8 {
                let (are_columns, ascending) = (case % 2 == 1, case / 2 % 2 == 1);
                let n_distinct = [5, 1 << 30][case / 4];
                if k <= n {
                    let lines: Vec<Vec<f32>> = (0..n_lines)
                        .map(|_| elements(n, n_distinct, &mut state))
                        .collect();
                    agrees(&lines, k, are_columns, ascending);
                }
            }
        }
    }
}

fn agrees(lines: &[Vec<f32>], k: usize, are_columns: bool, ascending: bool) {
    let (n_lines, n) = (lines.len(), lines[0].len());
    let (shape, result, axis) = if are_columns {
        ([n, n_lines], [k, n_lines], 0)
    } else {
        ([n_lines, n], [n_lines, k], 1)
    };
    let text = format!(
        "program(1.3) {{
            func main<ios18>(tensor<fp32, {shape:?}> x) {{
                tensor<fp32, {result:?}> y, tensor<int32, {result:?}> i = topk(
                    x = x, k = int32({k}), axis = int32({axis}), ascending = bool({ascending}));
            }} -> (y, i);
        }}"
    );
    let program = parse(&text, &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    let mut instance = instance(&program, Numerics::F32, 1);
    let x = laid_out(lines, are_columns);
    let bytes =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_ne_bytes()).collect() };
    instance
        .input("x", &shape)
        .unwrap()
        .copy_from_slice(&bytes(&x));
    instance.run("main").unwrap();
    let due = laid_out(&selected(lines, k, ascending), are_columns);
    let (values, indices): (Vec<f32>, Vec<i32>) = due.into_iter().unzip();
    let indices: Vec<u8> = indices.iter().flat_map(|i| i.to_ne_bytes()).collect();
    let what = format!("{k} of {n_lines} lines of {n}, axis {axis}, ascending {ascending}");
    assert!(
        instance.output("y").unwrap().bytes == bytes(&values),
        "{what}"
    );
    assert!(instance.output("i").unwrap().bytes == indices, "{what}");
}

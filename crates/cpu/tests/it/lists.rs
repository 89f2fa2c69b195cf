//! Lists: coremltools evaluates none, so what is expected is computed here.

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance};
use thane_mil::program::{Program, difference};
use thane_mil::text::{Blobs, parse, print};
use thane_mil::types::DType;
use thane_mil::valid;

const CPU: Cpu = Cpu::new(Numerics::F32, 1);

/// A list that grows by a row in each round: (i + 1) x at 2 i, so that rows between stay zeros.
const GROWING: &str = "program(1.3)
{
    func main<ios15>(tensor<int32, [1]> n, tensor<fp32, [3]> x, tensor<int32, [4]> which) {
            int32 zero = const()[val = int32(0)];
            int32 one = const()[val = int32(1)];
            int32 end = squeeze(axes = tensor<int32, [1]>([0]), x = n);
            string size = const()[val = string(\"size\")];
            list<tensor<fp32, [?]>, ?> empty = make_list(elem_shape = (size), init_length = int32(0));
            int32 last, list<tensor<fp32, [?]>, ?> full = while_loop(loop_vars = (zero, empty)) {
                block(int32 i, list<tensor<fp32, [?]>, ?> a) {
                    bool more = less(x = i, y = end);
                } -> (more);
                block(int32 j, list<tensor<fp32, [?]>, ?> b) {
                    int32 next = add(x = j, y = one);
                    int32 place = add(x = j, y = j);
                    fp32 times = cast(dtype = string(\"fp32\"), x = next);
                    tensor<fp32, [3]> row = mul(x = x, y = times);
                    list<tensor<fp32, [?]>, ?> longer = list_write(index = place, ls = b, value = row);
                } -> (next, longer);
            };
            int32 length = list_length(ls = full);
            tensor<fp32, [?]> first = list_read(index = zero, ls = full);
            tensor<fp32, [4, ?]> some = list_gather(indices = which, ls = full);
            list<tensor<fp32, [?]>, ?> swapped = list_scatter(indices = which, ls = full, value = some);
            tensor<fp32, [?]> again = list_read(index = zero, ls = swapped);
        } -> (length, first, some, again);
}
";

fn read(text: &str) -> Program {
    let program = parse(text, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}"));
    valid::check(&program).unwrap();
    program
}

fn give<const N: usize>(
    instance: &mut dyn Instance,
    name: &str,
    shape: &[usize],
    values: &[[u8; N]],
) {
    instance
        .input(name, shape)
        .unwrap()
        .copy_from_slice(values.as_flattened());
}

fn ints(instance: &mut dyn Instance, name: &str, values: &[i32]) {
    let values: Vec<[u8; 4]> = values.iter().map(|v| v.to_ne_bytes()).collect();
    give(instance, name, &[values.len()], &values);
}

fn floats(instance: &dyn Instance, name: &str) -> (Vec<usize>, Vec<f32>) {
    let view = instance.output(name).unwrap();
    assert_eq!(view.dtype, DType::Fp32);
    (
        view.shape.to_vec(),
        view.bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_ne_bytes(*b))
            .collect(),
    )
}

#[test]
fn a_list_grows_in_a_loop() {
    let program = read(GROWING);
    let mut instance = CPU.load(&program).unwrap().instantiate().unwrap();
    let instance = instance.as_mut();
    let x = [0.5f32, -2.0, 7.25];
    for n in [4, 3] {
        ints(instance, "n", &[n]);
        give(instance, "x", &[3], &x.map(f32::to_ne_bytes));
        ints(instance, "which", &[4, 1, 0, 2]);
        instance.run("main").unwrap();
        assert_eq!(
            instance.output("length").unwrap().bytes,
            (2 * n - 1).to_ne_bytes()
        );
        assert_eq!(floats(instance, "first"), (vec![3], x.to_vec()));
        let some: Vec<f32> = [3.0, 0.0, 1.0, 2.0]
            .iter()
            .flat_map(|k| x.map(|v| k * v))
            .collect();
        assert_eq!(floats(instance, "some"), (vec![4, 3], some));
        assert_eq!(floats(instance, "again"), (vec![3], x.to_vec()));
    }
    for (which, message) in [
        ([0, 1, 2, 7], "element 7 is outside of a list of 5"),
        ([-1, 0, 0, 0], "element -1"),
    ] {
        ints(instance, "which", &which);
        let error = instance.run("main").unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn lists_are_printed_and_read_back() {
    let program = read(GROWING);
    let text = print(&program, &mut Blobs::default());
    assert_eq!(text, GROWING);
    assert_eq!(difference(&program, &read(&text)), None);
}

/// A list of `len` elements (`?`: it grows), written to at `at` and read.
fn written(dtype: &str, elem: &str, len: &str, init: &str) -> String {
    let (ty, dynamic) = (format!("list<tensor<{dtype}, {elem}>, {len}>"), len == "?");
    let sizes = elem.trim_matches(['[', ']']).split(", ").enumerate();
    let sizes: Vec<String> = sizes
        .map(|(k, n)| format!("int32 d{k} = const()[val = int32({n})];"))
        .collect();
    let names: Vec<String> = (0..sizes.len()).map(|k| format!("d{k}")).collect();
    format!(
        "program(1.3) {{ func main<ios17>(tensor<int32, [1]> at, tensor<{dtype}, {elem}> x) {{
            {}
            int32 i = squeeze(x = at, axes = tensor<int32, [1]>([0]));
            {ty} old = make_list(elem_shape = ({}), {init} dynamic_length = bool({dynamic}), dtype = string(\"{dtype}\"));
            {ty} new = list_write(ls = old, index = i, value = x);
            int32 n = list_length(ls = new);
            tensor<{dtype}, {elem}> y = list_read(ls = new, index = i);
            tensor<{dtype}, {elem}> z = list_read(ls = new, index = int32(0));
            int32 n_old = list_length(ls = old);
        }} -> (n, y, z, n_old); }}",
        sizes.join(" "),
        names.join(", "),
    )
}

#[test]
fn lists_hold_every_type_and_keep_or_change_their_length() {
    let x: Vec<u8> = (1..=48).collect();
    for (dtype, n_bytes) in [("fp16", 2), ("fp32", 4), ("int32", 4), ("bool", 1)] {
        // Length before, where it is written, length after.
        for (len, init, at, expected) in [
            ("?", "", 0, Some((1, 1))),
            ("?", "init_length = int32(2),", 5, Some((2, 6))),
            ("3", "init_length = int32(3),", 2, Some((3, 3))),
            ("1", "", 0, Some((1, 1))),
            ("3", "init_length = int32(3),", 3, None),
            ("?", "", -1, None),
        ] {
            let program = read(&written(dtype, "[2, 3, 2]", len, init));
            let mut instance = CPU.load(&program).unwrap().instantiate().unwrap();
            ints(instance.as_mut(), "at", &[at]);
            let x = if dtype == "bool" {
                vec![1; 12]
            } else {
                x[..12 * n_bytes].to_vec()
            };
            instance.input("x", &[2, 3, 2]).unwrap().copy_from_slice(&x);
            let result = instance.run("main");
            let Some((before, after)) = expected else {
                let error = result.unwrap_err().to_string();
                assert!(error.contains(&format!("element {at}")), "{error}");
                continue;
            };
            result.unwrap();
            let length =
                |name| i32::from_ne_bytes(instance.output(name).unwrap().bytes.try_into().unwrap());
            assert_eq!((length("n_old"), length("n")), (before, after));
            assert_eq!(instance.output("y").unwrap().bytes, x);
            let first = if at == 0 { x.clone() } else { vec![0; x.len()] };
            assert_eq!(instance.output("z").unwrap().bytes, first);
        }
    }
}

/// What type inference cannot see: as many values as places are known when the program runs.
#[test]
fn values_are_as_many_as_their_places() {
    let text = "program(1.3) { func main<ios15>(tensor<int32, [?]> at, tensor<int32, [?, 2]> x) {
        int32 two = const()[val = int32(2)];
        list<tensor<int32, [2]>, ?> old = make_list(elem_shape = (two), dtype = string(\"int32\"), init_length = int32(0));
        list<tensor<int32, [2]>, ?> new = list_scatter(ls = old, indices = at, value = x);
        tensor<int32, [?, 2]> y = list_gather(ls = new, indices = at);
        } -> (y); }";
    let mut instance = CPU.load(&read(text)).unwrap().instantiate().unwrap();
    let x: Vec<u8> = (0..24).collect();
    instance.input("x", &[3, 2]).unwrap().copy_from_slice(&x);
    ints(instance.as_mut(), "at", &[4, 0, 2]);
    instance.run("main").unwrap();
    assert_eq!(instance.output("y").unwrap().bytes, x);
    for at in [&[4, 0][..], &[4, 0, 2, 1]] {
        ints(instance.as_mut(), "at", at);
        let error = instance.run("main").unwrap_err().to_string();
        assert!(
            error.contains(&format!("[3, 2] does not hold {} elements", at.len())),
            "{error}"
        );
    }
}

/// A place far away is refused by its size, not tried.
#[test]
fn a_list_does_not_grow_without_bound() {
    let program = read(&written("fp32", "[2, 3]", "?", ""));
    let mut instance = CPU.load(&program).unwrap().instantiate().unwrap();
    ints(instance.as_mut(), "at", &[i32::MAX]);
    instance.input("x", &[2, 3]).unwrap();
    let error = instance.run("main").unwrap_err().to_string();
    assert!(error.contains("takes more than"), "{error}");
}

#[test]
fn what_is_no_list_is_refused() {
    for (old, new, message) in [
        (
            "index = place, ls = b",
            "index = which, ls = b",
            "`index`: expected a scalar, found tensor<int32, [4]>",
        ),
        (
            "value = row",
            "value = n",
            "`value`: expected the element type tensor<fp32, [?]> of `ls`, found tensor<int32, [1]>",
        ),
        (
            "indices = which, ls = full, value = some",
            "indices = n, ls = full, value = some",
            "`value`: expected 1 elements of type",
        ),
        (
            "list_length(ls = full)",
            "list_length(ls = x)",
            "`ls`: expected a list, found tensor",
        ),
        (
            "init_length = int32(0)",
            "dtype = string(\"int8\")",
            "`dtype`: expected bool, fp16, fp32 or int32, found `int8`",
        ),
        (
            "init_length = int32(0)",
            "dynamic_length = bool(false), init_length = end",
            "expected a constant for a list of fixed length",
        ),
        (
            "elem_shape = (size)",
            "elem_shape = (size, size, size, size, size)",
            "expected rank 4 or less, found rank 5",
        ),
        (
            "elem_shape = (size)",
            "elem_shape = (x)",
            "expected constant sizes or strings, found tensor",
        ),
        (
            "-> (length, ",
            "-> (full, ",
            "expected an output of tensor or dictionary type, found list",
        ),
    ] {
        assert!(GROWING.contains(old), "{old}");
        let text = GROWING.replace(old, new);
        let error = match parse(&text, &|_, _, _| None) {
            Err(e) => e.to_string(),
            Ok(program) => format!("{:?}", valid::check(&program).unwrap_err()),
        };
        assert!(error.contains(message), "{error}");
    }
}

//! What an instance gives and takes by name: inputs of several types, and states.

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance, States};
use thane_mil::budget::Budget;
use thane_mil::text::parse;
use thane_mil::types::DType;
use thane_mil::valid;

fn load(text: &str) -> Box<dyn Instance> {
    load_within(text, &Budget::unlimited())
}

fn load_within(text: &str, budget: &Budget) -> Box<dyn Instance> {
    let program = parse(text, &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    Cpu::new(Numerics::F32, 1)
        .with_budget(budget)
        .load(&program)
        .unwrap()
        .instantiate()
        .unwrap()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// What one function writes is what the other finds, and what is written from outside is what both
/// find.
#[test]
fn states_are_read_and_written_by_name() {
    let mut instance = load(
        "program(1.3) {
        func add<ios18>(tensor<fp32, [3]> x, state<tensor<fp32, [3]>> sum, state<tensor<fp16, [2, 1]>> other) {
            tensor<fp32, [3]> old = read_state(input = sum);
            tensor<fp32, [3]> new = add(x = old, y = x);
            tensor<fp32, [3]> kept = coreml_update_state(state = sum, value = new);
        } -> (kept);
        func look<ios18>(state<tensor<fp32, [3]>> sum) {
            tensor<fp32, [3]> now = read_state(input = sum);
        } -> (now);
    }",
    );
    let zeros = instance.state("other").unwrap();
    assert_eq!(
        (zeros.dtype, zeros.shape, zeros.bytes),
        (DType::Fp16, &[2, 1][..], &[0; 4][..])
    );
    instance
        .state_mut("sum")
        .unwrap()
        .copy_from_slice(&bytes(&[100.0, -20.5, 3.25]));
    instance
        .input("x", &[3])
        .unwrap()
        .copy_from_slice(&bytes(&[1.0, 2.0, -4.0]));
    instance.run("add").unwrap();
    assert_eq!(
        instance.state("sum").unwrap().bytes,
        bytes(&[101.0, -18.5, -0.75])
    );
    // What was read out stays as it is when the state changes.
    instance.state_mut("sum").unwrap()[..4].copy_from_slice(&7f32.to_ne_bytes());
    assert_eq!(
        instance.output("kept").unwrap().bytes,
        bytes(&[101.0, -18.5, -0.75])
    );
    instance.run("look").unwrap();
    assert_eq!(
        instance.output("now").unwrap().bytes,
        bytes(&[7.0, -18.5, -0.75])
    );
    instance.reset();
    assert_eq!(instance.state("sum").unwrap().bytes, bytes(&[0.0; 3]));
    for error in [
        instance.state("x").unwrap_err(),
        instance.state_mut("gone").unwrap_err(),
    ] {
        assert!(
            error.to_string().starts_with("the program has no state `"),
            "{error}"
        );
    }
}

#[test]
fn states_are_exchanged_without_a_copy() {
    let text = |n: usize| {
        format!(
            "program(1.3) {{
        func look<ios18>(state<tensor<fp32, [{n}]>> sum, state<tensor<fp16, [2, 1]>> other) {{
            tensor<fp32, [{n}]> now = read_state(input = sum);
        }} -> (now);
    }}"
        )
    };
    let budget = Budget::new(1 << 20);
    let mut instance = load_within(&text(3), &budget);
    let (n_bytes, n_used) = (instance.states_bytes(), budget.used_bytes());
    assert_eq!(n_bytes, Some(3 * 4 + 2 * 2));
    let write = |instance: &mut dyn Instance, values: &[f32]| {
        let state = instance.state_mut("sum").unwrap();
        state.copy_from_slice(&bytes(values));
    };
    write(instance.as_mut(), &[1.0, 2.0, 3.0]);
    instance.run("look").unwrap();
    let place = instance.state("sum").unwrap().bytes.as_ptr();
    // The output holds what the state was.
    let mut apart = instance.fresh_states().unwrap();
    assert!(instance.swap_states(&mut apart));
    assert_eq!(instance.state("sum").unwrap().bytes, bytes(&[0.0; 3]));
    write(instance.as_mut(), &[9.0; 3]);
    // Another instance of the program takes them.
    let mut second = load_within(&text(3), &budget);
    assert!(second.swap_states(&mut apart));
    let taken = second.state("sum").unwrap().bytes;
    assert_eq!(
        (taken, taken.as_ptr()),
        (&bytes(&[1.0, 2.0, 3.0])[..], place)
    );
    second.run("look").unwrap();
    let now = second.output("now").unwrap().bytes;
    assert_eq!(now, bytes(&[1.0, 2.0, 3.0]));
    // States of another program are not taken.
    let mut longer = load(&text(4)).fresh_states().unwrap();
    let mut no_states = States(Box::new(7));
    for states in [&mut longer, &mut no_states] {
        assert!(!instance.swap_states(states));
        assert_eq!(instance.state("sum").unwrap().bytes, bytes(&[9.0; 3]));
    }
    // What instances count stays theirs.
    drop(second);
    drop(apart);
    instance.reset();
    assert_eq!(budget.used_bytes(), n_used);
    drop(instance);
    assert_eq!(budget.used_bytes(), 0);
}

/// Three functions with an `x` each: two can be told apart by their shape, the third cannot.
#[test]
fn an_input_of_several_types_is_kept_for_each() {
    let functions = "
        func floats<ios18>(tensor<fp32, [2, ?]> x) { tensor<fp32, [2, ?]> y = relu(x = x); } -> (y);
        func whole<ios18>(tensor<int32, [5]> x) { tensor<int32, [5]> y = add(x = x, y = x); } -> (y);";
    for _ in 0..8 {
        // Hash order differs from one load to the next.
        let mut instance = load(&format!("program(1.3) {{ {functions} }}"));
        instance
            .input("x", &[2, 1])
            .unwrap()
            .copy_from_slice(&bytes(&[1.5, -2.0]));
        let ints: Vec<u8> = (3..8i32).flat_map(i32::to_ne_bytes).collect();
        instance.input("x", &[5]).unwrap().copy_from_slice(&ints);
        instance.run("floats").unwrap();
        assert_eq!(instance.output("y").unwrap().bytes, bytes(&[1.5, 0.0]));
        instance.run("whole").unwrap();
        let twice: Vec<u8> = (3..8i32).flat_map(|v| (2 * v).to_ne_bytes()).collect();
        assert_eq!(instance.output("y").unwrap().bytes, twice);
        let error = instance.input("x", &[4]).unwrap_err().to_string();
        assert_eq!(
            error,
            "input `x`: expected tensor<fp32, [2, ?]> or tensor<int32, [5]>, found shape [4]"
        );

        let third = "func halves<ios18>(tensor<fp16, [2, 3]> x) { tensor<fp16, [2, 3]> y = relu(x = x); } -> (y);";
        let mut instance = load(&format!("program(1.3) {{ {functions} {third} }}"));
        assert!(instance.input("x", &[2, 4]).is_ok());
        let error = instance.input("x", &[2, 3]).unwrap_err().to_string();
        assert!(
            error.contains("can be tensor<fp16, [2, 3]> or tensor<fp32, [2, ?]>: give the inputs"),
            "{error}"
        );
    }
}

//! Ceilings of the machine.

use thane_kernels::Context;
use thane_kernels::ceiling::{bf16_flops, byte_ops, fma_flops, read_bytes};

use crate::testing::instruction_sets;

#[test]
fn ceilings_are_numbers_that_a_machine_can_have() {
    for isa in instruction_sets() {
        let ctx = Context::with_isa(1, isa);
        let all = [fma_flops(&ctx), bf16_flops(&ctx), byte_ops(&ctx)];
        assert!(
            all.iter().all(|ops| (1e6..1e13).contains(ops)),
            "{}: {all:?}",
            isa.name()
        );
    }
    let read = read_bytes(&Context::new(1));
    assert!((1e7..1e13).contains(&read), "{read}");
}

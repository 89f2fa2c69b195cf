//! How tokens are divided among threads.

use thane_kernels::Context;
use thane_kernels::linear::internals::share_len;

#[test]
fn threads_have_tokens_of_their_own_if_enough() {
    let lens = |n_threads: usize, most: usize| {
        let ctx = Context::new(n_threads);
        [0, 1, 47, 96, 100, 512, 1000].map(|n_tokens| share_len(&ctx, n_tokens, (12, 48), most))
    };
    assert_eq!(lens(1, 600), [1, 12, 48, 96, 108, 516, 504]);
    assert_eq!(lens(2, 600), [1, 12, 48, 48, 60, 264, 504]);
    // As many threads as leave 48 tokens to each: ten of 512.
    assert_eq!(lens(16, 600), [1, 12, 48, 48, 60, 60, 72]);
    assert_eq!(lens(3, 125), [1, 12, 48, 48, 60, 96, 120]);
}

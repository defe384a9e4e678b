//! Transposes by a Shuffle layer, beside a copy of the same bytes.

use divan::Bencher;
use divan::counter::BytesCount;
use micro_bench::{CASES, Case, Transpose};

fn main() {
    divan::main();
}

#[divan::bench(args = CASES)]
fn shuffle(bencher: Bencher, case: &Case) {
    let mut transpose = Transpose::new(case).expect("a network");
    bencher.counter(BytesCount::new(case.byte_len())).bench_local(|| transpose.run().expect("a run"));
}

#[divan::bench(args = CASES)]
fn copy(bencher: Bencher, case: &Case) {
    let mut transpose = Transpose::new(case).expect("a network");
    bencher.counter(BytesCount::new(case.byte_len())).bench_local(|| transpose.copy().expect("host memory"));
}

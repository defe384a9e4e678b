//! The reduction kernels: all_reduce in place between two threads, each of which reduces half of
//! the elements. Bytes per second are those of one rank's tensor.

use std::fmt;

use distcollective::{Buffer, DataType, ReduceOperation};
use divan::Bencher;
use divan::counter::BytesCount;
use micro_bench::Pair;

fn main() {
    divan::main();
}

struct Case {
    data_type: DataType,
    reduce_op: ReduceOperation,
    bytes: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} KiB", self.data_type, self.reduce_op, self.bytes >> 10)
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for data_type in DataType::ALL {
        for reduce_op in ReduceOperation::ALL {
            let bytes = [32 << 10, 256 << 10, 4 << 20].into_iter();
            cases.extend(bytes.map(|bytes| Case { data_type, reduce_op, bytes }));
        }
    }
    // No average of bool is defined.
    cases.retain(|case| (case.data_type, case.reduce_op) != (DataType::Bool, ReduceOperation::Avg));
    cases
}

#[divan::bench(args = cases(), max_time = 0.1)]
fn all_reduce(bencher: Bencher, case: &Case) {
    let &Case { data_type, reduce_op, bytes } = case;
    let ones = move || {
        let mut buffer = Buffer::zeroed(data_type, [(bytes / data_type.byte_len()) as i64])?;
        buffer.as_mut_bytes()?.fill(1);
        Ok::<_, distcollective::Error>(buffer)
    };
    let pair = Pair::new(move |communicator| {
        let mut buffer = ones()?;
        Ok(move || communicator.all_reduce(&mut buffer, reduce_op))
    });
    let (pair, mut buffer) = (pair.expect("two ranks"), ones().expect("a buffer"));
    let mut call = || pair.communicator().all_reduce(&mut buffer, reduce_op).expect("a call");
    bencher.counter(BytesCount::new(bytes)).bench_local(&mut call);
}

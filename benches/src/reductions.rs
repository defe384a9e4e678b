//! The reductions of each type: all_reduce in place between two threads, each of which reduces half
//! of the elements. Bytes per second are those of one rank's tensor.

use clap::Parser;
use distcollective::{Buffer, DataType, ReduceOperation, Result};
use serde_json::json;

use crate::jobs::beside_peer;
use crate::time::median_micros;

/// Measures reductions of all types between two threads.
#[derive(Parser)]
pub struct Arguments {
    /// The sizes of the tensor, in KiB
    #[arg(long, value_delimiter = ',', default_value = "32,256,4096")]
    kilobytes: Vec<usize>,
    /// The number of measured samples, of 8 MiB each
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
}

/// Prints the median of each type, operation and size.
pub fn measure(arguments: &Arguments) -> Result<()> {
    for data_type in DataType::ALL {
        for reduce_op in ReduceOperation::ALL {
            if !reduce_op.applies_to(data_type) {
                continue;
            }
            for &kilobytes in &arguments.kilobytes {
                let time = all_reduce(data_type, reduce_op, kilobytes << 10, arguments.samples)?;
                println!(
                    "{}",
                    json!({
                        "benchmark": "reductions", "data_type": data_type.name(), "reduce_op": reduce_op.name(),
                        "bytes": kilobytes << 10, "median_us": time,
                        "gb_per_s": ((kilobytes << 10) as f64 / time / 10.0).round() / 100.0,
                    })
                );
            }
        }
    }
    Ok(())
}

fn all_reduce(data_type: DataType, reduce_op: ReduceOperation, bytes: usize, samples: u32) -> Result<f64> {
    let calls = ((8 << 20) / bytes.max(1)).clamp(1, 1000) as u32;
    beside_peer(
        move |communicator| {
            let mut buffer = Buffer::zeroed(data_type, [(bytes / data_type.byte_len()) as i64])?;
            buffer.as_mut_bytes()?.fill(1);
            Ok(move || communicator.all_reduce(&mut buffer, reduce_op))
        },
        |call| median_micros(samples, calls, call),
    )
}

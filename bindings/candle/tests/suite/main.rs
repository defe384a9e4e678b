//! Collectives and linear layers of candle, between ranks that are threads.

mod collectives;
mod errors;
mod linear;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Error, Result, Tensor};
use distcollective::Communicator;
use safetensors::View;

/// Runs `body` on `n` ranks, and gives what each returns, in rank order.
///
/// # Panics
///
/// A rank panicked, or they did not all finish in 10 s.
fn on_ranks<T: Send + 'static>(n: u32, body: impl Fn(&Communicator) -> T + Send + Sync + 'static) -> Vec<T> {
    let deadline = Duration::from_secs(10) * test_support::patience();
    let (sender, results) = mpsc::channel();
    let ranks = thread::spawn(move || {
        let run = |communicator: Communicator| Ok(body(&communicator.with_timeout(deadline)));
        let _ = sender.send(Communicator::spawn(n, run));
    });
    let results = results.recv_timeout(deadline);
    let results = results.unwrap_or_else(|error| panic!("the ranks did not finish within {deadline:?}: {error}"));
    ranks.join().expect("it has sent its results");
    results.unwrap_or_else(|error| panic!("{error}"))
}

/// The text of an error, which has to be one, without candle's backtrace.
fn text_of<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it should be an error"),
        Err(Error::WithBacktrace { inner, .. }) => inner.to_string(),
        Err(error) => error.to_string(),
    }
}

/// The bytes of a tensor's elements.
fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    tensor.data().into_owned()
}

/// A tensor of these bytes.
fn tensor_of(bytes: &[u8], dtype: DType, dims: &[usize]) -> Tensor {
    Tensor::from_raw_buffer(bytes, dtype, dims, &Device::Cpu).expect("the bytes fit the shape")
}

/// The numbers from 0 on.
fn count_up(dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    let numbers = Tensor::arange(0f32, count as f32, &Device::Cpu).expect("numbers");
    numbers.reshape(dims).expect("as many as there are")
}

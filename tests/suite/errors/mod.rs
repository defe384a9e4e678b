//! Every rule, broken once: the kind of the error and its wording.

mod building;
mod calls;
mod communicators;
mod guide;
mod local_layers;

use distcollective::network::TensorId;
use distcollective::{DataType, DistCollectiveLayer, Engine, ErrorKind, Network, ReduceOperation, Result};

const SUM: Option<ReduceOperation> = Some(ReduceOperation::Sum);

#[track_caller]
fn expect<T>(result: Result<T>, kind: ErrorKind, text: &str) {
    match result {
        Ok(_) => panic!("no error, instead of: {text}"),
        Err(error) => {
            assert_eq!(error.to_string(), text);
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}

/// A network with one float32 input "x" of these dimensions.
fn network(dims: &[i64]) -> (Network, TensorId) {
    typed_network(DataType::Float32, dims)
}

fn typed_network(data_type: DataType, dims: &[i64]) -> (Network, TensorId) {
    let mut network = Network::new();
    let x = network.add_input("x", data_type, dims).expect("an input");
    (network, x)
}

/// A network of one collective, built.
fn build_one(dims: &[i64], layer: impl Into<DistCollectiveLayer>) -> Result<Engine> {
    let (mut network, x) = network(dims);
    let mut layer = layer.into();
    layer.set_name("sync");
    let y = network.add(layer, x)?;
    network.mark_output(y, "y")?;
    network.build()
}

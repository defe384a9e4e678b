//! The linear layers beside those that are not split. Weights and inputs are small integers, whose
//! sums are exact in any order.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Module, Result, Tensor, safetensors};
use candle_nn::Linear;
use candle_nn::var_builder::{ShardedSafeTensors, ShardedVarBuilder};
use distcollective::Communicator;
use distcollective_candle::{ColumnParallelLinear, RowParallelLinear};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use test_support::Folder;

use crate::{on_ranks, text_of};

const IN: usize = 8;
const HIDDEN: usize = 12;
const OUT: usize = 4;

/// Integers from -4 to 3.
fn integers(stream: u64, dims: &[usize]) -> Tensor {
    let mut numbers = ChaCha20Rng::seed_from_u64(stream);
    let count = dims.iter().product();
    let numbers: Vec<f32> = (0..count).map(|_| (numbers.next_u32() % 8) as f32 - 4.0).collect();
    Tensor::from_vec(numbers, dims, &Device::Cpu).expect("as many as the shape has")
}

fn tensors() -> HashMap<&'static str, Tensor> {
    HashMap::from([
        ("up.weight", integers(0, &[HIDDEN, IN])),
        ("up.bias", integers(1, &[HIDDEN])),
        ("down.weight", integers(2, &[OUT, HIDDEN])),
        ("down.bias", integers(3, &[OUT])),
        ("flat.weight", integers(4, &[HIDDEN])),
        ("odd.weight", integers(6, &[HIDDEN, 9])),
        ("deep.weight", integers(5, &[OUT, HIDDEN, 1])),
    ])
}

/// The layer that is not split.
fn whole(name: &str, bias: bool) -> Linear {
    let mut tensors = tensors();
    let mut tensor = |part| tensors.remove(&*format!("{name}.{part}")).expect("the tensor");
    Linear::new(tensor("weight"), bias.then(|| tensor("bias")))
}

/// Runs `body` on `n` ranks with the file of the tensors.
fn with_file(n: u32, body: impl Fn(&Communicator, ShardedVarBuilder<'static>) + Send + Sync + 'static) {
    let folder = Folder::create();
    let file = folder.file("model.safetensors");
    safetensors::save(&tensors(), &file).expect("a file");
    on_ranks(n, move |communicator| body(communicator, builder(&file)));
}

fn builder(file: &Path) -> ShardedVarBuilder<'static> {
    // SAFETY: no one writes the file any more.
    unsafe { ShardedSafeTensors::var_builder(&[file], DType::F32, &Device::Cpu) }.expect("the file")
}

fn numbers(tensor: Result<Tensor>) -> (Vec<usize>, Vec<f32>) {
    let tensor = tensor.expect("a tensor");
    (tensor.dims().to_vec(), tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("numbers"))
}

/// Inputs of two, three and four dimensions.
fn inputs(size: usize) -> [Tensor; 3] {
    [vec![3, size], vec![2, 3, size], vec![2, 1, 3, size]].map(|dims| integers(9, &dims))
}

#[test]
fn a_column_parallel_layer_gives_each_rank_its_part_or_all() {
    for (n, bias) in [(1, true), (2, false), (2, true), (4, true)] {
        with_file(n, move |communicator, vb| {
            let part = HIDDEN / n as usize;
            let start = communicator.rank().index() * part;
            let split = ColumnParallelLinear::load(IN, HIDDEN, bias, vb.pp("up"), communicator).expect("the layer");
            let gathered = split.clone().gather_output(true);
            for x in inputs(IN) {
                let expected = whole("up", bias).forward(&x).expect("an output");
                let last = x.rank() - 1;
                assert_eq!(numbers(split.forward(&x)), numbers(expected.narrow(last, start, part)));
                assert_eq!(numbers(gathered.forward(&x)), numbers(Ok(expected)));
            }
        });
    }
}

#[test]
fn a_row_parallel_layer_adds_the_parts_and_one_bias() {
    for (n, bias) in [(1, true), (2, false), (2, true), (4, true)] {
        with_file(n, move |communicator, vb| {
            let part = HIDDEN / n as usize;
            let start = communicator.rank().index() * part;
            let split = RowParallelLinear::load(HIDDEN, OUT, bias, vb.pp("down"), communicator).expect("the layer");
            let of_whole_input = split.clone().input_is_parallel(false);
            for x in inputs(HIDDEN) {
                let expected = numbers(whole("down", bias).forward(&x));
                let own = x.narrow(x.rank() - 1, start, part).expect("a part");
                assert_eq!(numbers(split.forward(&own)), expected);
                assert_eq!(numbers(of_whole_input.forward(&x)), expected);
            }
        });
    }
}

#[test]
fn a_column_and_a_row_parallel_layer_are_an_mlp() {
    with_file(4, |communicator, vb| {
        let up = ColumnParallelLinear::load(IN, HIDDEN, true, vb.pp("up"), communicator).expect("a layer");
        let down = RowParallelLinear::load(HIDDEN, OUT, true, vb.pp("down"), communicator).expect("a layer");
        for x in inputs(IN) {
            let expected = whole("up", true).forward(&x).and_then(|h| whole("down", true).forward(&h.relu()?));
            assert_eq!(numbers(up.forward(&x).and_then(|h| down.forward(&h.relu()?))), numbers(expected));
        }
    });
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    with_file(4, |communicator, vb| {
        let column = |in_dim, out_dim, name| {
            text_of(ColumnParallelLinear::load(in_dim, out_dim, true, vb.pp(name), communicator))
        };
        let row =
            |in_dim, out_dim, name| text_of(RowParallelLinear::load(in_dim, out_dim, true, vb.pp(name), communicator));
        let of_layers = vb.pp("layers").pp(0);
        let nested = ColumnParallelLinear::load(IN, 10, false, of_layers.pp("up"), communicator);
        assert_eq!(
            text_of(nested),
            "layer \"layers.0.up\" (column-parallel): out_dim is 10, which is not a multiple of 4 ranks"
        );
        assert_eq!(
            row(6, OUT, "down"),
            "layer \"down\" (row-parallel): in_dim is 6, which is not a multiple of 4 ranks"
        );
        assert_eq!(
            column(IN, 2 * HIDDEN, "up"),
            "layer \"up\" (column-parallel): this rank's part of the tensor \"weight\" is [3, 8], and the layer's sizes \
             need [6, 8]"
        );
        assert_eq!(
            row(HIDDEN, 5, "down"),
            "layer \"down\" (row-parallel): this rank's part of the tensor \"weight\" is [4, 3], and the layer's sizes \
             need [5, 3]"
        );
        assert_eq!(column(IN, HIDDEN, "gate"), "cannot find tensor gate.weight");
        assert_eq!(
            row(IN, HIDDEN, "odd"),
            "layer \"odd\" (row-parallel): the tensor \"weight\" is [12, 9], and dimension 1 is not a multiple of 4 ranks"
        );
        for (name, dims) in [("flat", 1), ("deep", 3)] {
            let text = format!("the tensor \"weight\" has {dims} dimensions, and the layer needs 2");
            assert_eq!(row(HIDDEN, OUT, name), format!("layer \"{name}\" (row-parallel): {text}"));
            assert_eq!(column(IN, HIDDEN, name), format!("layer \"{name}\" (column-parallel): {text}"));
        }
    });
}

#[test]
fn a_whole_input_of_another_length_is_an_error_on_every_rank() {
    with_file(2, |communicator, vb| {
        let down = RowParallelLinear::load(HIDDEN, OUT, true, vb.pp("down"), communicator).expect("a layer");
        let down = down.input_is_parallel(false);
        // Rank 0 has its part of the first one, and both have theirs of the second.
        for len in [HIDDEN / 2, HIDDEN + 1] {
            let error = text_of(down.forward(&integers(4, &[1, len])));
            assert_eq!(
                error,
                format!("layer \"down\" (all_reduce): the input's last dimension is {len}, and in_dim is {HIDDEN}")
            );
        }
        down.forward(&integers(4, &[1, HIDDEN])).expect("the communicator still works");
    });
}

#[test]
fn errors_of_the_ranks_name_the_layer() {
    with_file(2, |communicator, vb| {
        let down = RowParallelLinear::load(HIDDEN, OUT, true, vb.pp("down"), communicator).expect("a layer");
        let rows = 1 + communicator.rank().index();
        let error = text_of(down.forward(&integers(4, &[rows, HIDDEN / 2])));
        assert!(error.contains("layer \"down\" (all_reduce): ranks disagree on "), "{error}");
        assert!(error.contains("of 4 float32") && error.contains("of 8 float32"), "{error}");
    });
}

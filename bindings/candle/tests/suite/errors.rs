//! What is refused, and what the errors say.

use std::time::Duration;

use candle_core::{CudaStorage, CustomOp1, DType, Device, MetalStorage, Tensor, Var};
use distcollective::{Communicator, DistCollective, ReduceOperation};
use distcollective_candle::Collective;

use crate::{count_up, on_ranks, tensor_of, text_of};

fn sum(communicator: &Communicator) -> Collective {
    Collective::new(DistCollective::all_reduce(ReduceOperation::Sum).named("sum"), communicator)
}

#[test]
fn types_that_the_layer_lacks_are_named_and_do_no_harm() {
    on_ranks(2, |communicator| {
        let sum = sum(communicator);
        for (dtype, byte_len) in [(DType::I16, 2), (DType::F8E8M0, 1)] {
            let x = tensor_of(&vec![0; 4 * byte_len], dtype, &[4]);
            let expected = format!(
                "layer \"sum\" (all_reduce): the tensor is {}; it takes f64, f32, f16, bf16, f8e4m3, i64, i32, u32, u8; convert \
                 the tensor with to_dtype",
                dtype.as_str()
            );
            assert_eq!(text_of(sum.apply(&x)), expected);
        }
        let unnamed = Collective::new(DistCollective::broadcast(1), communicator);
        let error = text_of(unnamed.apply(&tensor_of(&[0; 2], DType::I16, &[1])));
        assert!(error.starts_with("layer (broadcast): the tensor is i16; "), "{error}");
        let y = sum.apply(&count_up(&[2])).and_then(|y| y.to_vec1::<f32>());
        assert_eq!(y.expect("the communicator still works"), [0.0, 2.0]);
    });
}

#[test]
fn a_shape_that_the_operation_cannot_take_names_the_layer() {
    on_ranks(3, |communicator| {
        let reduce_scatter = DistCollective::reduce_scatter(ReduceOperation::Sum).named("grads");
        let reduce_scatter = Collective::new(reduce_scatter, communicator);
        let rule = "layer \"grads\" (reduce_scatter): dimension 0 is 4, which is not a multiple of 3 ranks; input is float32 [4, 2]";
        assert_eq!(text_of(reduce_scatter.apply(&count_up(&[4, 2]))), rule);
        let scalar = text_of(sum(communicator).apply(&count_up(&[])));
        assert!(scalar.starts_with("layer \"sum\" (all_reduce): "), "{scalar}");
        let nine = text_of(sum(communicator).apply(&count_up(&[1; 9])));
        assert!(nine.starts_with("layer \"sum\" (all_reduce): "), "{nine}");
    });
}

#[test]
fn ranks_that_disagree_get_an_error() {
    // At the first run, and in a later one.
    let errors = on_ranks(2, |communicator| match communicator.rank().0 {
        0 => text_of(sum(communicator).apply(&count_up(&[2]))),
        _ => {
            text_of(Collective::new(DistCollective::all_gather().named("gather"), communicator).apply(&count_up(&[2])))
        }
    });
    let differ = "the layers of the ranks differ: rank 0 has all_reduce(sum) of float32 among 2 ranks; rank 1 has all_gather of \
                  float32 among 2 ranks";
    assert_eq!(errors[0], format!("rank 0: layer \"sum\" (all_reduce): {differ}"));
    assert_eq!(errors[1], format!("rank 1: layer \"gather\" (all_gather): {differ}"));
    let errors = on_ranks(2, |communicator| {
        let sum = sum(communicator);
        sum.apply(&count_up(&[2])).expect("the ranks agree");
        text_of(sum.apply(&count_up(&[2 + communicator.rank().index()])))
    });
    for (rank, error) in errors.iter().enumerate() {
        assert!(error.starts_with(&format!("rank {rank}: layer \"sum\" (all_reduce): ranks disagree on ")), "{error}");
        assert!(error.contains("of 2 float32") && error.contains("of 3 float32"), "{error}");
    }
}

#[test]
fn a_rank_that_fails_leaves_or_does_not_come_is_an_error_on_the_others() {
    let errors = on_ranks(3, |communicator| {
        let sum = sum(communicator);
        sum.apply(&count_up(&[2])).expect("all ranks are there");
        match communicator.rank().0 {
            1 => communicator.abort("out of memory").map_or_else(|error| error.to_string(), |()| String::new()),
            _ => text_of(sum.apply(&count_up(&[2]))),
        }
    });
    for rank in [0, 2] {
        assert!(errors[rank].contains("rank 1 ended the communicator: out of memory"), "{}", errors[rank]);
    }
    let errors = on_ranks(2, |communicator| {
        let sum = sum(communicator);
        sum.apply(&count_up(&[2])).expect("both ranks are there");
        match communicator.rank().0 {
            0 => text_of(sum.apply(&count_up(&[2]))),
            _ => String::new(),
        }
    });
    let subject = "rank 0: layer \"sum\" (all_reduce): all_reduce(sum) of 2 float32 (collective ";
    assert!(errors[0].starts_with(subject), "{}", errors[0]);
    assert!(errors[0].ends_with("): rank 1 left the communicator while this rank waited"), "{}", errors[0]);
    let errors = on_ranks(2, |communicator| match communicator.rank().0 {
        0 => {
            let sum = sum(&communicator.with_timeout(Duration::from_millis(50)));
            text_of(sum.apply(&count_up(&[2])))
        }
        _ => {
            while communicator.check().is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            String::new()
        }
    });
    assert!(errors[0].contains("layer \"sum\" (all_reduce)") && errors[0].contains("rank 1"), "{}", errors[0]);
}

#[test]
fn there_is_no_gradient() {
    let refused = "layer \"sum\" (all_reduce): it has no gradient; detach its input";
    on_ranks(2, move |communicator| {
        let sum = sum(communicator);
        let x = Var::from_tensor(&count_up(&[2])).expect("a variable");
        let y = sum.apply(&x).expect("a sum");
        assert_eq!(text_of(y.backward()), refused);
        let y = (sum.apply(&x.detach()).expect("a sum") * x.as_tensor()).expect("a product");
        let gradient = y.backward().expect("gradients").remove(&x).expect("a gradient");
        assert_eq!(gradient.to_vec1::<f32>().expect("numbers"), [0.0, 2.0]);
    });
}

#[test]
fn tensors_on_a_gpu_are_refused() {
    on_ranks(1, |communicator| {
        let sum = sum(communicator);
        let layout = Tensor::zeros(2, DType::F32, &Device::Cpu).expect("a tensor").layout().clone();
        let refused = |device| {
            format!(
                "layer \"sum\" (all_reduce): the tensor is on a {device} device; it takes tensors on the CPU; move the tensor with to_device"
            )
        };
        assert_eq!(text_of(sum.cuda_fwd(&CudaStorage, &layout)), refused("CUDA"));
        assert_eq!(text_of(sum.metal_fwd(&MetalStorage, &layout)), refused("Metal"));
    });
}

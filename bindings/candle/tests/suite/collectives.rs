//! What the collectives give.

use candle_core::{CustomOp1, DType, Tensor};
use distcollective::{Buffer, Communicator, DataType, DistCollective, ReduceOperation};
use distcollective_candle::Collective;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::{bytes_of, count_up, on_ranks, tensor_of};

/// Every type of candle that the layer takes, and the layer's.
const TYPES: [(DType, DataType); 9] = [
    (DType::F64, DataType::Float64),
    (DType::F32, DataType::Float32),
    (DType::F16, DataType::Float16),
    (DType::BF16, DataType::Bfloat16),
    (DType::F8E4M3, DataType::Float8E4M3),
    (DType::I64, DataType::Int64),
    (DType::I32, DataType::Int32),
    (DType::U32, DataType::Uint32),
    (DType::U8, DataType::Uint8),
];

/// The columns of a row.
const COLUMNS: usize = 37;

/// A row of any bits, other ones on each rank.
fn rows(rank: u64, rows: usize, data_type: DataType) -> Vec<u8> {
    let mut bytes = vec![0; rows * COLUMNS * data_type.byte_len()];
    ChaCha20Rng::seed_from_u64(rank).fill_bytes(&mut bytes);
    bytes
}

fn buffer_of(bytes: &[u8], data_type: DataType, rows: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(data_type, [rows as i64, COLUMNS as i64]).expect("memory");
    buffer.as_mut_bytes().expect("host memory").copy_from_slice(bytes);
    buffer
}

/// Compares collectives of every type with the communicator's own calls.
fn check_types(communicator: &Communicator) {
    let n = communicator.world_size() as usize;
    for (dtype, data_type) in TYPES {
        let bytes = rows(communicator.rank().0.into(), n, data_type);
        let x = tensor_of(&bytes, dtype, &[n, COLUMNS]);
        let input = buffer_of(&bytes, data_type, n);
        let check = |what: &str, y: Tensor, rows: usize, expected: &Buffer| {
            assert_eq!((y.dtype(), y.dims()), (dtype, &[rows, COLUMNS][..]), "{what} of {data_type} among {n}");
            assert!(bytes_of(&y) == expected.as_bytes().expect("host memory"), "{what} of {data_type} among {n}");
        };
        let zeroed = |rows| Buffer::zeroed(data_type, [rows as i64, COLUMNS as i64]).expect("memory");

        for reduce_op in ReduceOperation::ALL.into_iter().filter(|op| op.applies_to(data_type)) {
            let mut expected = zeroed(n);
            let call = distcollective::collective::Collective::AllReduce { reduce_op };
            communicator.collective(call, Some(&input), Some(&mut expected)).expect("all_reduce");
            let all_reduce = Collective::new(DistCollective::all_reduce(reduce_op), communicator);
            check("all_reduce", all_reduce.apply(&x).expect("all_reduce"), n, &expected);

            let mut expected = zeroed(1);
            communicator.reduce_scatter(&input, &mut expected, reduce_op).expect("reduce_scatter");
            let reduce_scatter = Collective::new(DistCollective::reduce_scatter(reduce_op), communicator);
            check("reduce_scatter", reduce_scatter.apply(&x).expect("reduce_scatter"), 1, &expected);
        }

        let mut expected = zeroed(n * n);
        communicator.all_gather(&input, &mut expected).expect("all_gather");
        let all_gather = Collective::new(DistCollective::all_gather(), communicator);
        check("all_gather", all_gather.apply(&x).expect("all_gather"), n * n, &expected);

        for root in 0..communicator.world_size() {
            let mut expected = input.try_clone().expect("memory");
            communicator.broadcast(&mut expected, root).expect("broadcast");
            let broadcast = Collective::new(DistCollective::broadcast(root), communicator);
            check("broadcast", broadcast.apply(&x).expect("broadcast"), n, &expected);
        }
    }
}

#[test]
fn every_operation_and_type_has_the_bits_of_the_library() {
    for n in [1, 2, 3, 4] {
        on_ranks(n, check_types);
    }
}

#[test]
fn a_sum_is_that_of_all_ranks() {
    let sums = on_ranks(3, |communicator| {
        let sum = Collective::new(DistCollective::all_reduce(ReduceOperation::Sum), communicator);
        let x = (count_up(&[2, 2]) * f64::from(communicator.rank().0 + 1)).expect("a product");
        sum.apply(&x).and_then(|y| y.to_vec2::<f32>()).expect("a sum")
    });
    assert_eq!(sums, vec![vec![vec![0.0, 6.0], vec![12.0, 18.0]]; 3]);
}

#[test]
fn any_layout_of_an_input_is_read() {
    on_ranks(2, |communicator| {
        let all_gather = Collective::new(DistCollective::all_gather(), communicator);
        let x = (count_up(&[4, 6]) + f64::from(100 * communicator.rank().0)).expect("a sum");
        let layouts = [
            x.t(),
            x.narrow(0, 1, 2),
            x.narrow(1, 2, 3),
            x.narrow(0, 3, 1).and_then(|row| row.expand((3, 6))),
            x.reshape((2, 2, 6)).and_then(|x| x.permute((1, 2, 0))),
        ];
        for x in layouts.map(|x| x.expect("a layout")) {
            // Made element by element, which candle's own copy is not.
            let elements = x.flatten_all().and_then(|x| x.to_vec1::<f32>()).expect("elements");
            let mut expected = vec![0f32; 2 * elements.len()];
            communicator.all_gather(&elements, &mut expected).expect("all_gather");
            let y = all_gather.apply(&x).expect("all_gather");
            assert_eq!(y.dims()[1..], x.dims()[1..]);
            assert_eq!(
                y.flatten_all().and_then(|y| y.to_vec1::<f32>()).expect("elements"),
                expected,
                "{:?}",
                x.layout()
            );
        }
    });
}

#[test]
fn one_layer_takes_several_types_and_shapes_in_turn() {
    on_ranks(2, |communicator| {
        let max = Collective::new(DistCollective::all_reduce(ReduceOperation::Max), communicator);
        for (dtype, dims) in
            [(DType::F32, vec![3]), (DType::BF16, vec![2, 5]), (DType::F32, vec![0, 4]), (DType::U8, vec![1])]
        {
            let x = count_up(&dims).to_dtype(dtype).expect("a cast");
            let y = max.apply(&x).expect("a maximum");
            assert_eq!((y.dtype(), y.dims(), bytes_of(&y)), (dtype, &dims[..], bytes_of(&x)));
        }
    });
}

#[test]
fn the_other_operations_and_groups_work_too() {
    let results = on_ranks(4, |communicator| {
        let rank = communicator.rank().0;
        let x =
            Tensor::new(&[rank + 1], &candle_core::Device::Cpu).and_then(|x| x.to_dtype(DType::I32)).expect("a tensor");
        let apply = |collective: Collective| collective.apply(&x).and_then(|y| y.to_vec1::<i32>()).expect("a result");
        let gathered = apply(Collective::new(DistCollective::gather(2), communicator));
        let pairs = distcollective::collective::Partition::new([[0, 1], [2, 3]]);
        let of_pair = apply(Collective::new(pairs.broadcast(1), communicator));
        let outer = DistCollective::all_reduce(ReduceOperation::Sum).group([0, 3]);
        (gathered, of_pair, apply(Collective::new(outer, communicator)))
    });
    // What is not written is zero.
    let expected = [
        (vec![0; 4], vec![2], vec![5]),
        (vec![0; 4], vec![2], vec![0]),
        (vec![1, 2, 3, 4], vec![4], vec![0]),
        (vec![0; 4], vec![4], vec![5]),
    ];
    assert_eq!(results, expected);
}

#[test]
fn it_is_an_operation_of_candle() {
    on_ranks(2, |communicator| {
        let all_gather = Collective::new(DistCollective::all_gather(), communicator);
        assert_eq!(all_gather.name(), "all_gather");
        let x = count_up(&[2]);
        let y = x.apply_op1_no_bwd(&all_gather).and_then(|y| y.to_vec1::<f32>()).expect("all_gather");
        assert_eq!(y, [0.0, 1.0, 0.0, 1.0]);
    });
}

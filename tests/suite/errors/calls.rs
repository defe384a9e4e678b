//! What setting shapes, running contexts and layers, and eager calls find.

use distcollective::collective::{Collective, InPlace};
use distcollective::comm::RawOperands;
use distcollective::dist_collective::BoundLayer;
use distcollective::network::Shuffle;
use distcollective::tensor::{Bool, Dims, Element, Shape};
use distcollective::{
    Buffer, CollectiveOperation as Op, Communicator, DataType, DistCollective, DistCollectiveLayer, Engine, Error,
    ErrorKind, ExecutionContext, Rank, ReduceOperation, Result, Stream, inputs, outputs,
};

use super::{build_one, expect, network};
use crate::ranks::on_ranks;

/// A context of one identity layer on an input of 2 to 8 rows.
fn context() -> ExecutionContext {
    let build = |min: i64| {
        let (mut network, x) = network(&[-1, 2]);
        network.set_optimization_profile(x, [min, 2], [4, 2], [8, 2]).expect("a profile");
        let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(1).named("sync");
        let y = network.add(sum, x).expect("a layer");
        network.mark_output(y, "y").expect("an output");
        let flat = network.add_shuffle(y, Shuffle::reshape([-1, 4])).expect("a layer");
        network.mark_output(flat, "flat").expect("an output");
        network.layer_of_mut(flat).expect("a layer").set_name("flatten");
        network.build()
    };
    let error = build(1).expect_err("1 row of 2 does not make rows of 4");
    assert!(error.to_string().contains("(at min of the profile)"), "{error}");
    build(2).expect("an engine").create_execution_context().expect("a context")
}

#[test]
fn setting_a_shape() {
    use ErrorKind::{InvalidArgument, InvalidShape, NotReady};
    let mut context = context();
    expect(
        context.tensor_shape("y"),
        NotReady,
        "input \"x\": its shape is not set; it is float32 [-1, 2]; call set_input_shape",
    );
    expect(
        context.set_input_shape("x", [9, 2]),
        InvalidShape,
        "input \"x\": [9, 2] is not in its profile, which is between [2, 2] and [8, 2]",
    );
    expect(
        context.set_input_shape("x", [4]),
        InvalidShape,
        "input \"x\": [4] is not in its profile, which is between [2, 2] and [8, 2]",
    );
    expect(
        context.set_input_shape("x", [3, 2]),
        InvalidShape,
        "layer \"flatten\" (shuffle): reshape [-1, 4]: the 6 elements of [3, 2] are not a multiple of 4",
    );
    expect(
        context.set_input_shape("z", [3, 2]),
        InvalidArgument,
        "\"z\" is not an input or output; inputs are \"x\"; outputs are \"y\", \"flat\"",
    );
    expect(
        context.set_input_shape("y", [3, 2]),
        InvalidArgument,
        "input \"y\": it is an output; its shape follows from those of the inputs",
    );
    context.set_input_shape("x", Dims::new(&[4, 2]).expect("dims")).expect("a shape");
    assert_eq!(context.tensor_shape("flat").expect("a shape").as_slice(), [2, 4]);
}

#[test]
fn enqueue_finds_what_is_missing_or_does_not_fit() {
    use ErrorKind::{InvalidArgument, InvalidBuffer, NotReady};
    let mut context = context();
    let (x, mut y, mut flat) = ([0f32; 8], [0f32; 8], [0f32; 8]);
    expect(
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y, "flat" => &mut flat]),
        NotReady,
        "input \"x\": its shape is not set; it is float32 [-1, 2]; call set_input_shape",
    );
    context.set_input_shape("x", [4, 2]).expect("a shape");
    expect(
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y]),
        NotReady,
        "output \"flat\": nothing is bound to it; it is float32 [2, 4]",
    );
    expect(
        context.execute(inputs!["x" => &[0i32; 8]], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidBuffer,
        "input \"x\": it is float32 [4, 2], and what is bound to it is int32",
    );
    expect(
        context.execute(inputs!["x" => &x[..6]], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidBuffer,
        "input \"x\": it is float32 [4, 2], 8 elements or 32 bytes; what is bound to it has 6 elements or 24 bytes",
    );
    let array = ndarray::arr2(&[[0f32; 4]; 2]);
    expect(
        context.execute(inputs!["x" => &array], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidBuffer,
        "input \"x\": it is float32 [4, 2], and what is bound to it is float32 [2, 4]",
    );
    let transposed = array.t();
    expect(
        context.execute(inputs!["x" => &transposed], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidBuffer,
        "input \"x\": the array [4, 2] is not contiguous in row-major order; make a copy with `as_standard_layout`",
    );
    let mut array = ndarray::Array2::<f32>::zeros((2, 4));
    let transposed = array.view_mut().reversed_axes();
    expect(
        context.execute(inputs!["x" => &x], outputs!["y" => transposed, "flat" => &mut flat]),
        InvalidBuffer,
        "output \"y\": the array [4, 2] is not contiguous in row-major order; give an array that is, and copy the result \
         with `assign`",
    );
    expect(
        context.execute(inputs!["x" => &x, "x" => &x], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidArgument,
        "\"x\" is given twice",
    );
    expect(
        context.execute(inputs!["y" => &x], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidArgument,
        "\"y\" is an output and stands among the inputs",
    );
    context.execute(inputs!["x" => &x], outputs!["y" => &mut y, "flat" => &mut flat]).expect("all is well");
}

#[test]
fn enqueue_needs_the_communicator() {
    let engine = build_one(&[2], DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2)).expect("an engine");
    let mut context = engine.create_execution_context().expect("a context");
    let (x, mut y) = ([0f32; 2], [0f32; 2]);
    expect(
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y]),
        ErrorKind::NotReady,
        "layer \"sync\" (all_reduce): no communicator is set, and the layer needs one; call set_communicator",
    );
}

/// Binds raw addresses of one allocation, and enqueues.
fn enqueue_raw(engine: &Engine, addresses: &[(&str, usize, usize)]) -> Result<()> {
    let mut context = engine.create_execution_context()?;
    context.set_communicator(&Communicator::builder().in_process(1)?.remove(0))?;
    let mut memory = Buffer::zeroed(DataType::Uint8, [4096])?;
    let mut bindings = context.create_bindings();
    for &(name, offset, byte_len) in addresses {
        // SAFETY: the memory outlives the work, and only the work uses it.
        unsafe { bindings.bind_address(name, memory.as_mut_ptr().add(offset), byte_len)? };
    }
    context.enqueue(bindings, &Stream::inline())?.wait()?;
    Ok(())
}

/// The text of an error without addresses, which differ from run to run.
fn without_addresses(result: Result<()>) -> Result<()> {
    result.map_err(|error| {
        let words = error.to_string();
        let words = words.split(' ').map(|word| if word.starts_with("0x") { "0x…" } else { word });
        Error::new(error.kind(), words.collect::<Vec<_>>().join(" "))
    })
}

#[test]
fn enqueue_finds_overlap_and_misalignment() {
    use ErrorKind::InvalidBuffer;
    let sum = || DistCollective::all_reduce(ReduceOperation::Sum).group([Rank(0)]);
    let engine = build_one(&[4], sum()).expect("an engine");
    enqueue_raw(&engine, &[("x", 0, 16), ("y", 0, 16)]).expect("in place");
    expect(
        without_addresses(enqueue_raw(&engine, &[("x", 0, 16), ("y", 4, 16)])),
        InvalidBuffer,
        "rank 0: input \"x\" and output \"y\": input 0x… and output 0x… overlap; in place is the same address",
    );
    expect(
        without_addresses(enqueue_raw(&engine, &[("x", 2, 16), ("y", 64, 16)])),
        InvalidBuffer,
        "rank 0: input \"x\": 0x… is not aligned to the 4 bytes of a float32",
    );
    expect(
        enqueue_raw(&engine, &[("x", 0, 16), ("y", 64, 12)]),
        InvalidBuffer,
        "rank 0: output \"y\": it is float32 [4], 4 elements or 16 bytes; what is bound to it has 3 elements or 12 bytes",
    );

    let (mut network, x) = network(&[4]);
    for i in 0..2 {
        let y = network.add(sum(), x).expect("a layer");
        network.mark_output(y, &format!("y{i}")).expect("an output");
    }
    let engine = network.build().expect("an engine");
    expect(
        enqueue_raw(&engine, &[("x", 0, 16), ("y0", 0, 16), ("y1", 64, 16)]),
        InvalidBuffer,
        "rank 0: input \"x\" and output \"y0\": they are bound to memory that overlaps; only a collective that reads the one, \
         as its only reader, and writes the other works in place",
    );
    expect(
        enqueue_raw(&engine, &[("x", 0, 16), ("y0", 64, 16), ("y1", 72, 16)]),
        InvalidBuffer,
        "rank 0: outputs \"y0\" and \"y1\" are bound to memory that overlaps",
    );
}

#[test]
fn eager_calls() {
    use ErrorKind::{InvalidArgument, InvalidBuffer};
    let communicator = &Communicator::builder().in_process(1).expect("a communicator")[0];
    expect(
        communicator.all_gather(&[1f32], &mut [0f32; 2]),
        InvalidBuffer,
        "rank 0: all_gather: the output has 2 elements; with 1 rank it must have 1",
    );
    expect(
        communicator.all_gather(&[1f32], &mut [0i32; 1]),
        InvalidBuffer,
        "rank 0: all_gather: the input is float32 and the output int32",
    );
    expect(
        communicator.broadcast(&mut [0i32; 1], Rank(1)),
        InvalidArgument,
        "rank 0: broadcast: root 1 is not one of 1 rank",
    );
    expect(
        communicator.all_reduce(&mut [Bool::TRUE], ReduceOperation::Avg),
        InvalidArgument,
        "rank 0: all_reduce: bool has no average; sum and max mean or, prod and min mean and; cast to a number to average",
    );
    expect(
        communicator.all_reduce(&mut [1f32], ReduceOperation::Bor),
        InvalidArgument,
        "rank 0: all_reduce: bor is of integers and bool, and not of float32",
    );
    expect(
        communicator.gather(&[1f32], None::<&mut [f32]>, 0),
        InvalidBuffer,
        "rank 0: gather: this rank, the root, needs an output",
    );
    expect(
        communicator.new_group([0, 0]),
        InvalidArgument,
        "rank 0: new_group: rank 0 occurs twice; the group is [0, 0]",
    );
    expect(
        communicator.new_group([1]),
        InvalidArgument,
        "rank 0: new_group: rank 1 is not in a communicator of 1 rank; the group is [1]",
    );
    assert_eq!(<f32 as Element>::DATA_TYPE, DataType::Float32);
}

/// Every operation, with every distance between input and output at which they overlap against the
/// in-place rule, and with null addresses. Each is an error before the rank sends anything, so no
/// rank waits for the other.
#[test]
fn illegal_overlap_and_null_are_refused_for_every_operation() {
    on_ranks(2, |communicator| {
        let layers: [DistCollectiveLayer; 8] = [
            DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2).into(),
            DistCollective::all_gather().nb_rank(2).into(),
            DistCollective::broadcast(Rank(1)).nb_rank(2).into(),
            DistCollective::reduce(ReduceOperation::Sum, Rank(1)).nb_rank(2).into(),
            DistCollective::reduce_scatter(ReduceOperation::Sum).nb_rank(2).into(),
            DistCollective::all_to_all().nb_rank(2).into(),
            DistCollective::gather(Rank(1)).nb_rank(2).into(),
            DistCollective::scatter(Rank(1)).nb_rank(2).into(),
        ];
        const ELEMENTS: usize = 4;
        let mut refused = 0;
        for layer in layers {
            // Each rank refuses other numbers of runs, so the next layer has another communicator.
            let communicator = communicator.split(Some(0), 0).expect("a group").expect("a member");
            let bound = layer.bind(&communicator, DataType::Int32).expect("it fits");
            let operation = layer.collective_operation();
            let output_len = bound.output_shape(&[ELEMENTS]).expect("a shape").element_count() as isize;
            let mut memory = [0i32; 64];
            let input: *mut i32 = &mut memory[32];
            let enqueue = |input: *const i32, output: *mut i32| {
                // SAFETY: every call here is refused, so no address is used.
                let work = unsafe { bound.enqueue(input.cast(), output.cast(), &[ELEMENTS], &Stream::inline()) };
                work.map(|_| ()).expect_err("it is refused").to_string()
            };
            for distance in -output_len + 1..ELEMENTS as isize {
                let legal = match bound.in_place(&[ELEMENTS]).expect("a shape") {
                    InPlace::SameAddress => distance == 0,
                    InPlace::InputAt { element_offset } => distance == -(element_offset as isize),
                    InPlace::OutputAt { element_offset } => distance == element_offset as isize,
                    InPlace::Never => false,
                    InPlace::Unused => true,
                };
                if legal || !bound.reads_input() || !bound.writes_output() {
                    continue;
                }
                let text = enqueue(input, input.wrapping_offset(distance));
                assert!(text.contains(" overlap; in place is "), "{operation} at {distance}: {text}");
                refused += 1;
            }
            let far = input.wrapping_sub(30);
            if bound.reads_input() {
                assert!(
                    enqueue(std::ptr::null(), far).contains("the input is null, and this rank uses it"),
                    "{operation}"
                );
            }
            if bound.writes_output() {
                assert!(enqueue(input, std::ptr::null_mut()).contains("the output is null"), "{operation}");
                let crooked = far.cast::<u8>().wrapping_add(2).cast();
                assert!(enqueue(input, crooked).contains("is not aligned to the 4 bytes of a int32"), "{operation}");
            }
        }
        assert!(refused > 20, "{refused}");
    });
}

#[test]
fn raw_eager_calls_are_checked_when_they_are_issued() {
    let communicator = &Communicator::builder().in_process(1).expect("a communicator")[0];
    let mut memory = [0i32; 8];
    let start: *mut i32 = memory.as_mut_ptr();
    let refused = |collective, elements, input: *const i32, output: *mut i32| {
        let operands = RawOperands::Pair { input: input.cast(), output: output.cast() };
        let stream = Stream::worker().expect("a thread");
        // SAFETY: every call here is refused, so no address is used.
        let work = unsafe { communicator.enqueue(collective, DataType::Int32, elements, operands, &stream) };
        let error = work.map(|_| ()).expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidBuffer);
        error.to_string()
    };
    let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    assert_eq!(
        refused(Collective::AllGather, 4, std::ptr::null(), start),
        "rank 0: all_gather of 4 int32: the input is null, and this rank uses it (16 bytes)"
    );
    let crooked = start.cast::<u8>().wrapping_add(2).cast();
    assert!(refused(sum, 1, start, crooked).ends_with("is not aligned to the 4 bytes of a int32"));
    assert!(refused(sum, 4, start, start.wrapping_add(2)).ends_with("overlap; in place is the same address"));
    assert_eq!(
        refused(sum, usize::MAX, start, start),
        format!("rank 0: all_reduce: {} elements for each of 1 rank are more than memory can hold", usize::MAX)
    );
    communicator.check().expect("the communicator works");
}

/// The calls of both layers are the same, so only the layers tell them apart.
#[test]
fn bound_layers_in_another_order_are_an_error_on_every_rank() {
    let errors = on_ranks(2, |communicator| {
        let bind = || DistCollective::all_gather().nb_rank(2).into_layer().bind(&communicator, DataType::Int32);
        let mut layers = [bind().expect("the same layer"), bind().expect("the same layer")];
        let run = |layer: &BoundLayer| {
            let mut y = [0i32; 2];
            let mine = communicator.rank().0 as i32;
            layer.execute(Some(&[mine]), Some(&mut y), &[1]).map(|()| assert_eq!(y, [0, 1]))
        };
        for layer in layers.iter().chain(&layers).chain(&layers[1..]) {
            run(layer).expect("the same order");
        }
        if communicator.rank() == Rank(1) {
            layers.reverse();
        }
        run(&layers[0]).expect_err("another layer")
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Disagreement);
        let text = error.to_string();
        let sides = text.split_once(
            "ranks disagree on collective 6: rank 0 calls all_gather of 1 int32 in run 3 of context or layer ",
        );
        let (first, second) = sides
            .and_then(|(_, sides)| {
                sides.split_once("; rank 1 calls all_gather of 1 int32 in run 4 of context or layer ")
            })
            .unwrap_or_else(|| panic!("{text}"));
        assert!(first.parse::<u16>().is_ok() && second.parse::<u16>().is_ok() && first != second, "{text}");
    }
}

#[test]
fn a_bound_layer_checks_its_buffers() {
    let communicator = &Communicator::builder().in_process(1).expect("one rank")[0];
    let layer = DistCollective::all_gather().nb_rank(1).named("sync").into_layer();
    let bound = layer.bind(communicator, DataType::Int32).expect("it fits");
    let run = |input: &[i32], output: &mut [i32], dims: &[usize]| bound.execute(Some(input), Some(output), dims);
    run(&[1, 2], &mut [0; 2], &[2]).expect("it fits");
    expect(
        run(&[1, 2], &mut [0; 2], &[3]),
        ErrorKind::InvalidBuffer,
        "rank 0: layer \"sync\" (all_gather): the input has 2 elements, and its shape is [3]",
    );
    expect(
        bound.execute(Some(&[1f32]), None::<&mut [f32]>, &[1]),
        ErrorKind::InvalidBuffer,
        "rank 0: layer \"sync\" (all_gather): the input is float32, and the layer's type int32",
    );
    expect(
        bound.execute(Some(&[1i32]), None::<&mut [i32]>, &[1]),
        ErrorKind::NotReady,
        "rank 0: layer \"sync\" (all_gather): this rank needs an output",
    );
    expect(
        bound.execute(None::<&[i32]>, Some(&mut [1i32]), &[1]),
        ErrorKind::NotReady,
        "rank 0: layer \"sync\" (all_gather): this rank needs an input",
    );
    // SAFETY: the shape is refused before an address is used.
    let refused = unsafe { bound.enqueue(std::ptr::null(), std::ptr::null_mut(), &[], &Stream::inline()) };
    expect(
        refused.map(drop),
        ErrorKind::InvalidShape,
        "rank 0: layer \"sync\" (all_gather): the input has no dimensions; a layer's collective needs 1 to 8; input is \
         int32 []",
    );
    expect(
        distcollective::collective::output_shape(Op::AllGather, 0, &Shape::new(&[1]).expect("a shape")),
        ErrorKind::InvalidArgument,
        "a collective has at least one rank",
    );
    let mut unfinished = DistCollective::all_gather().into_layer();
    unfinished.set_collective_operation(Op::AllReduce);
    let (mut network, x) = network(&[4]);
    expect(
        network.add(unfinished, x),
        ErrorKind::InvalidArgument,
        "layer \"all_reduce_0\" (all_reduce): it needs a reduce operation: sum, prod, max, min or avg",
    );
}

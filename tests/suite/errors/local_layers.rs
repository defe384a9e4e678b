//! What adding and building ElementWise, Concatenation and Slice layers find.

use distcollective::network::{ElementWiseOperation, LayerBody, TensorId};
use distcollective::{DataType, Engine, ErrorKind, Network, Result};

use super::expect;

/// Inputs of these dimensions, whose -1 is 2, 4 and 8 in the profile.
fn inputs(dims: &[&[i64]]) -> (Network, Vec<TensorId>) {
    let mut network = Network::new();
    let mut ids = Vec::new();
    for (number, dims) in dims.iter().enumerate() {
        let input = network.add_input(&format!("x{number}"), DataType::Float32, *dims).expect("an input");
        if dims.contains(&-1) {
            let at = |rows: i64| dims.iter().map(|&dim| if dim == -1 { rows } else { dim }).collect::<Vec<_>>();
            network.set_optimization_profile(input, at(2), at(4), at(8)).expect("a profile");
        }
        ids.push(input);
    }
    (network, ids)
}

fn build(mut network: Network, output: TensorId) -> Result<Engine> {
    network.mark_output(output, "y")?;
    network.build()
}

fn sum_of(a: &[i64], b: &[i64]) -> Result<Engine> {
    let (mut network, x) = inputs(&[a, b]);
    let y = network.add_elementwise(x[0], x[1], ElementWiseOperation::Sum)?;
    build(network, y)
}

fn joined(dims: &[&[i64]], axis: usize) -> Result<Engine> {
    let (mut network, x) = inputs(dims);
    let y = network.add_concatenation(&x, axis)?;
    build(network, y)
}

fn sliced(dims: &[i64], start: &[i64], size: &[i64], stride: &[i64]) -> Result<Engine> {
    let (mut network, x) = inputs(&[dims]);
    let y = network.add_slice(x[0], start, size, stride)?;
    build(network, y)
}

#[test]
fn numbers_and_names_of_elementwise_operations() {
    expect(
        ElementWiseOperation::from_number(6),
        ErrorKind::InvalidArgument,
        "6 is not the number of an elementwise operation; they are 0 (sum), 1 (prod), 2 (max), 3 (min), \
         4 (sub), 5 (div)",
    );
    expect(
        "pow".parse::<ElementWiseOperation>(),
        ErrorKind::InvalidArgument,
        "\"pow\" is not an elementwise operation; they are sum, prod, max, min, sub, div",
    );
    for (number, operation) in ElementWiseOperation::ALL.into_iter().enumerate() {
        assert_eq!(ElementWiseOperation::from_number(number as i32).expect("a number"), operation);
        assert_eq!(operation.to_string().to_uppercase().parse::<ElementWiseOperation>().expect("a name"), operation);
    }
}

#[test]
fn adding_layers_of_several_types() {
    use ErrorKind::InvalidArgument;
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [4]).expect("an input");
    let i = network.add_cast(x, DataType::Int32).expect("a layer");
    let b = network.add_cast(x, DataType::Bool).expect("a layer");
    expect(
        network.add_elementwise(x, i, ElementWiseOperation::Sum),
        InvalidArgument,
        "layer \"elementwise_2\" (elementwise): input 0 is float32 and input 1 is int32; inputs have one type, and add_cast \
         converts to it",
    );
    expect(
        network.add_concatenation(&[i, i, x], 0),
        InvalidArgument,
        "layer \"concatenation_2\" (concatenation): input 0 is int32 and input 2 is float32; inputs have one type, and \
         add_cast converts to it",
    );
    for operation in [ElementWiseOperation::Sub, ElementWiseOperation::Div] {
        expect(
            network.add_elementwise(b, b, operation),
            InvalidArgument,
            &format!(
                "layer \"elementwise_2\" (elementwise): bool has no {operation}; add_cast converts it to a number"
            ),
        );
    }
    expect(
        network.add_concatenation(&[], 0),
        InvalidArgument,
        "a Concatenation layer has at least one input, and none is given",
    );
    expect(
        network.add_concatenation(&[x], 8),
        InvalidArgument,
        "layer \"concatenation_2\" (concatenation): the axis is 8; a tensor has at most 8 dimensions, from 0 on",
    );
    assert_eq!(network.layers().count(), 2, "what was refused was not added");
}

/// Attributes and inputs that fit no more are found at build.
#[test]
fn changed_layers_are_checked_at_build() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Bool, [2, 3]).expect("an input");
    let i = network.add_cast(x, DataType::Int32).expect("a layer");
    let sum = network.add_elementwise(x, x, ElementWiseOperation::Sum).expect("a layer");
    let joined = network.add_concatenation(&[x, x], 0).expect("a layer");
    let part = network.add_slice(x, &[0, 0], &[1, 1], &[1, 1]).expect("a layer");
    for (number, tensor) in [i, sum, joined, part].into_iter().enumerate() {
        network.mark_output(tensor, &format!("y{number}")).expect("an output");
    }
    network.build().expect("an engine");
    let number_of = |tensor| network.producer(tensor).expect("a tensor").expect("a layer");
    let (joined_layer, part_layer) = (number_of(joined), number_of(part));
    match network.layer_of_mut(sum).expect("a layer").body_mut() {
        LayerBody::ElementWise(layer) => layer.operation = ElementWiseOperation::Div,
        other => panic!("{other:?}"),
    }
    network.set_input(joined_layer, 1, i).expect("an input");
    match network.layer_mut(part_layer).expect("a layer").body_mut() {
        LayerBody::Slice(layer) => layer.set_size(&[1]).expect("a size"),
        other => panic!("{other:?}"),
    }
    expect(
        network.build(),
        ErrorKind::InvalidNetwork,
        "3 mistakes:\n  layer \"elementwise_1\" (elementwise): bool has no div; add_cast converts it to a number\n  layer \
         \"concatenation_2\" (concatenation): input 0 is bool and input 1 is int32; inputs have one type, and add_cast \
         converts to it\n  layer \"slice_3\" (slice): start is [0, 0], size is [1] and stride is [1, 1]; they have a \
         number for each dimension of the input",
    );
}

#[test]
fn shapes_that_are_not_broadcast() {
    let kind = ErrorKind::InvalidNetwork;
    expect(
        sum_of(&[2, 3], &[3]),
        kind,
        "layer \"elementwise_0\" (elementwise): input 0 is [2, 3] and input 1 is [3]; inputs have equally many dimensions, \
         and a reshape by add_shuffle adds dimensions of 1",
    );
    expect(
        sum_of(&[2, 3, 4], &[2, 5, 4]),
        kind,
        "layer \"elementwise_0\" (elementwise): dimension 1 is 3 in input 0 and 5 in input 1, which is neither equal nor 1 \
         in one of them; the inputs are [2, 3, 4] and [2, 5, 4]",
    );
    // The dimension is 1 in neither, also where there are no elements.
    expect(
        sum_of(&[0], &[2]),
        kind,
        "layer \"elementwise_0\" (elementwise): dimension 0 is 0 in input 0 and 2 in input 1, which is neither equal nor 1 \
         in one of them; the inputs are [0] and [2]",
    );
    expect(
        sum_of(&[1 << 40, 1], &[1, 1 << 40]),
        ErrorKind::InvalidNetwork,
        "layer \"elementwise_0\" (elementwise): [1099511627776, 1099511627776] has more elements than memory can hold",
    );
    // 2, 4 and 8 at the points of the profile.
    expect(
        sum_of(&[-1, 3], &[4, 3]),
        kind,
        "layer \"elementwise_0\" (elementwise): dimension 0 is 2 in input 0 and 4 in input 1, which is neither equal nor 1 \
         in one of them; the inputs are [2, 3] and [4, 3] (at min of the profile)",
    );
    sum_of(&[-1, 3], &[-1, 1]).expect("both dimensions are dynamic");
    sum_of(&[-1, 1], &[1, 3]).expect("1 is broadcast");
}

#[test]
fn shapes_that_are_not_concatenated() {
    let kind = ErrorKind::InvalidNetwork;
    let subject = "layer \"concatenation_0\" (concatenation)";
    expect(
        joined(&[&[2, 3], &[2, 3]], 2),
        kind,
        &format!("{subject}: the axis is 2, and input 0 is [2, 3], which has no dimension 2"),
    );
    expect(joined(&[&[]], 0), kind, &format!("{subject}: the axis is 0, and input 0 is [], which has no dimension 0"));
    expect(
        joined(&[&[2, 3], &[2, 3], &[3]], 0),
        kind,
        &format!("{subject}: input 0 is [2, 3] and input 2 is [3]; inputs have equally many dimensions"),
    );
    expect(
        joined(&[&[2, 3, 4], &[2, 9, 5]], 1),
        kind,
        &format!(
            "{subject}: dimension 2 is 4 in input 0 and 5 in input 1; only dimension 1, the axis, may differ; the inputs \
             are [2, 3, 4] and [2, 9, 5]"
        ),
    );
    expect(
        joined(&[&[-1, 3], &[4, 3]], 1),
        kind,
        &format!(
            "{subject}: dimension 0 is 2 in input 0 and 4 in input 1; only dimension 1, the axis, may differ; the inputs \
             are [2, 3] and [4, 3] (at min of the profile)"
        ),
    );
    expect(
        joined(&[&[1 << 59], &[1 << 59], &[1 << 59]], 0),
        ErrorKind::InvalidNetwork,
        &format!("{subject}: [1729382256910270464] has more elements than memory can hold"),
    );
    // Beside a dimension of 0 any number may stand.
    let long = [i64::MAX, 0];
    joined(&[&long, &long], 0).expect("no element");
    expect(
        joined(&[&long, &long, &long], 0),
        kind,
        &format!("{subject}: the sum of dimension 0 over inputs 0 to 2 is too large for any tensor"),
    );
}

#[test]
fn slices_that_leave_the_input() {
    use ErrorKind::{InvalidArgument, InvalidNetwork};
    let subject = "layer \"slice_0\" (slice)";
    expect(
        sliced(&[4], &[-1], &[1], &[1]),
        InvalidArgument,
        &format!("{subject}: start [-1] is -1 in dimension 0; an index is at least 0"),
    );
    expect(
        sliced(&[4, 4], &[0, 0], &[1, -1], &[1, 1]),
        InvalidArgument,
        &format!(
            "{subject}: size [1, -1] is -1 in dimension 1; it is the output's shape, whose dimensions are at least 0 and \
             not dynamic"
        ),
    );
    expect(
        sliced(&[4, 4], &[0, 0], &[1, 1], &[1]),
        InvalidArgument,
        &format!(
            "{subject}: start is [0, 0], size is [1, 1] and stride is [1]; they have a number for each dimension of the \
             input"
        ),
    );
    expect(
        sliced(&[4], &[0; 9], &[1; 9], &[1; 9]),
        InvalidArgument,
        &format!("{subject}: start [0, 0, 0, 0, 0, 0, 0, 0, 0] has 9 numbers; a tensor has at most 8 dimensions"),
    );
    expect(
        sliced(&[4], &[0, 0], &[1, 1], &[1, 1]),
        InvalidNetwork,
        &format!("{subject}: start, size and stride have 2 numbers, and the input is [4]"),
    );
    let outside = |dims: &[i64], start: &[i64], size: &[i64], stride: &[i64], text: &str| {
        expect(sliced(dims, start, size, stride), InvalidNetwork, &format!("{subject}: {text}"));
    };
    let has = |dim: usize, len: usize| {
        format!("dimension {dim} has {len} elements, with indices from 0 on, and the slice takes")
    };
    let at = |taken: &str, input: &str| format!("{} {taken}; the input is {input}", has(0, 4));
    outside(&[4], &[1], &[2], &[3], &at("2 from index 1 to 4 (stride 3)", "[4]"));
    outside(&[4], &[2], &[4], &[-1], &at("4 from index 2 to -1 (stride -1)", "[4]"));
    outside(&[4], &[4], &[1], &[1], &at("1 from index 4 to 4 (stride 1)", "[4]"));
    let far = "3 from index 0 to 18446744073709551614 (stride 9223372036854775807)";
    outside(&[4], &[0], &[3], &[i64::MAX], &at(far, "[4]"));
    outside(
        &[2, 3],
        &[0, 1],
        &[2, 3],
        &[1, 1],
        &format!("{} 3 from index 1 to 3 (stride 1); the input is [2, 3]", has(1, 3)),
    );
    // 2, 4 and 8 at the points of the profile.
    outside(
        &[-1, 3],
        &[0, 0],
        &[4, 3],
        &[1, 1],
        &format!("{} 4 from index 0 to 3 (stride 1); the input is [2, 3] (at min of the profile)", has(0, 2)),
    );
    expect(
        sliced(&[1], &[0], &[1 << 62], &[0]),
        InvalidNetwork,
        &format!("{subject}: [4611686018427387904] has more elements than memory can hold"),
    );
    for (start, size, stride) in [(4, 0, 1), (99, 0, -7), (3, 1, i64::MIN), (1, 5, 0), (3, 4, -1)] {
        let engine = sliced(&[4], &[start], &[size], &[stride]).expect("all indices are inside");
        assert_eq!(engine.io_tensor("y").expect("an output").dims.as_slice(), [size]);
    }
    sliced(&[0], &[0], &[0], &[1]).expect("no element");
}

/// A shape within the profile at which the layer's rule does not hold.
#[test]
fn setting_a_shape_checks_the_layers() {
    let (mut network, x) = inputs(&[&[-1, 3], &[-1, 3]]);
    let sum = network.add_elementwise(x[0], x[1], ElementWiseOperation::Sum).expect("a layer");
    let joined = network.add_concatenation(&x, 1).expect("a layer");
    network.mark_output(sum, "sum").expect("an output");
    network.mark_output(joined, "joined").expect("an output");
    let mut context = network.build().expect("an engine").create_execution_context().expect("a context");
    context.set_input_shape("x0", [5, 3]).expect("the other shape is missing");
    expect(
        context.set_input_shape("x1", [6, 3]),
        ErrorKind::InvalidShape,
        "layer \"elementwise_0\" (elementwise): dimension 0 is 5 in input 0 and 6 in input 1, which is neither equal nor 1 \
         in one of them; the inputs are [5, 3] and [6, 3]",
    );
    context.set_input_shape("x1", [5, 3]).expect("equal rows");
    assert_eq!(context.tensor_shape("joined").expect("a shape").as_slice(), [5, 6]);
}

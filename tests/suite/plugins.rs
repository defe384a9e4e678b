//! Plugins in engines: outputs, plans, failures.

use distcollective::network::{Plugin, PluginCall, PluginRegistry, Shuffle};
use distcollective::tensor::Shape;
use distcollective::{
    DataType, DistCollective, Engine, Error, ErrorKind, Network, Rank, ReduceOperation, Result, inputs, outputs,
};

use crate::ranks::on_ranks;

/// Adds one to each float. It does not say how it is serialized.
#[derive(Debug)]
pub struct AddOne;

impl Plugin for AddOne {
    fn type_name(&self) -> &str {
        "add_one"
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        let input = call.input(0)?.as_slice::<f32>()?;
        for (y, x) in call.output(0)?.as_mut_slice::<f32>()?.iter_mut().zip(input) {
            *y = x + 1.0;
        }
        Ok(())
    }
}

/// Splits the rows of a matrix into two outputs. A negative number is an error, and NaN a panic.
#[derive(Debug)]
struct Split {
    at: u8,
}

impl Plugin for Split {
    fn type_name(&self) -> &str {
        "split"
    }

    fn version(&self) -> &str {
        "2"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(vec![inputs[0], inputs[0]])
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        let [rows, columns] = *inputs[0].as_slice() else {
            return Err(Error::new(ErrorKind::InvalidShape, "it wants a matrix"));
        };
        let at = usize::from(self.at);
        Ok(vec![Shape::new(&[at, columns])?, Shape::new(&[rows - at, columns])?])
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        let input = call.input(0)?.as_array::<f32>()?;
        if input[[0, 0]] < 0.0 {
            return Err(Error::new(ErrorKind::Plugin, "a negative number"));
        }
        assert!(!input[[0, 0]].is_nan(), "not a number");
        let at = usize::from(self.at);
        call.output(0)?.as_array_mut::<f32>()?.assign(&input.slice(ndarray::s![..at, ..]).into_dyn());
        call.output(1)?.as_array_mut::<f32>()?.assign(&input.slice(ndarray::s![at.., ..]).into_dyn());
        Ok(())
    }

    fn serialize(&self) -> Result<Vec<u8>> {
        Ok(vec![self.at])
    }
}

fn split_network() -> Network {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [3, 2]).expect("an input");
    let top = network.add_plugin("cut", Split { at: 1 }, &[x]).expect("a layer");
    let cut = network.producer(top).expect("a tensor").expect("a layer");
    let bottom = network.layer_outputs(cut).expect("a layer")[1];
    let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), bottom).expect("a layer");
    network.mark_output(top, "top").expect("an output");
    network.mark_output(sum, "sum").expect("an output");
    network
}

#[test]
fn plugins_are_made_again_from_a_plan() {
    let engine = split_network().build().expect("an engine");
    let plan = engine.serialize().expect("a plan");
    let mut registry = PluginRegistry::new();
    registry.register("split", "1", |_| Ok(Split { at: 0 })).expect("a plugin");
    assert_eq!(
        Engine::deserialize_with(&plan, &registry).expect_err("version 2 is wanted").to_string(),
        "layer \"cut\" (split): plugin \"split\" version \"2\" is not registered; registered: \"split\" \"1\""
    );
    registry.register("split", "2", |bytes| Ok(Split { at: bytes[0] })).expect("a plugin");
    assert!(registry.register("split", "2", |_| Ok(AddOne)).is_err(), "twice");
    let engine = Engine::deserialize_with(&plan, &registry).expect("an engine");
    let outputs = on_ranks(2, move |communicator| -> Result<_> {
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let (mut top, mut sum) = ([0f32; 2], ndarray::Array2::<f32>::zeros((2, 2)));
        context.execute(inputs!["x" => &x], outputs!["top" => &mut top, "sum" => &mut sum])?;
        Ok((top, sum))
    });
    for output in outputs {
        assert_eq!(output.expect("no error"), ([1.0, 2.0], ndarray::arr2(&[[6.0, 8.0], [10.0, 12.0]])));
    }
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [1]).expect("an input");
    let y = network.add_plugin("add", AddOne, &[x]).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    assert_eq!(
        network.build().expect("an engine").serialize().expect_err("no bytes").to_string(),
        "layer \"add\" (add_one): plugin \"add_one\" does not say how it is serialized"
    );
}

#[test]
fn a_plugin_that_fails_on_one_rank_tells_the_others_at_once() {
    for (bad, why) in [(-1.0, "a negative number"), (f32::NAN, "the plugin panicked: not a number")] {
        let engine = split_network().build().expect("an engine");
        let errors = on_ranks(2, move |communicator| {
            let mut context = engine.create_execution_context().expect("a context");
            context.set_communicator(&communicator).expect("it fits");
            let x = if communicator.rank() == Rank(1) { [bad; 6] } else { [1.0; 6] };
            let (mut top, mut sum) = ([0f32; 2], [0f32; 4]);
            let error = context.execute(inputs!["x" => &x], outputs!["top" => &mut top, "sum" => &mut sum]);
            error.expect_err("rank 1 fails").to_string()
        });
        assert_eq!(errors[1], format!("rank 1: layer \"cut\" (split): {why}"));
        let told = format!("rank 1 ended the communicator: layer \"cut\" (split): {why}");
        // Rank 0 may return the error before its own layer, or from it.
        assert!(errors[0].starts_with("rank 0: ") && errors[0].ends_with(&told), "{}", errors[0]);
    }
}

/// Its output is larger for a shape inside the profile than at min, opt and max.
#[derive(Debug)]
struct Hill;

impl Plugin for Hill {
    fn type_name(&self) -> &str {
        "hill"
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        let rows = inputs[0].as_slice()[0];
        Ok(vec![Shape::new(&[if rows == 3 { 1_000_000 } else { 4 }, 2])?])
    }

    fn enqueue(&self, _call: &mut PluginCall<'_>) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_shape_for_which_no_room_was_planned_is_refused() {
    for marked in [false, true] {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [-1, 2]).expect("an input");
        network.set_optimization_profile(x, [2, 2], [4, 2], [8, 2]).expect("a profile");
        let h = network.add_plugin("hill", Hill, &[x]).expect("a layer");
        if marked {
            network.mark_output(h, "h").expect("an output");
        }
        let y = network.add_shuffle(h, Shuffle::transpose([1, 0]).then_transpose([1, 0])).expect("a layer");
        network.mark_output(y, "y").expect("an output");
        let engine = network.build().expect("an engine");
        let mut context = engine.create_execution_context().expect("a context");
        context.set_input_shape("x", [2, 2]).expect("a shape");
        let error = context.set_input_shape("x", [3, 2]).expect_err("a million rows");
        let tensor = if marked { "y" } else { "hill.output0" };
        assert_eq!(
            error.to_string(),
            format!(
                "tensor {tensor:?}: float32 [1000000, 2] is larger than at any point of the profile (8000000 bytes, 32 planned)"
            )
        );
        assert_eq!(context.tensor_shape("x").expect("the shape before").as_slice(), [2, 2]);
    }
}

/// Writes two outputs together: quotient and remainder.
#[derive(Debug)]
struct DivideByThree;

impl Plugin for DivideByThree {
    fn type_name(&self) -> &str {
        "divide_by_three"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(vec![inputs[0]; 2])
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        Ok(vec![inputs[0]; 2])
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        assert!(call.input(1).is_err() && call.output(2).is_err());
        let x = call.input(0)?.as_slice::<i32>()?;
        let mut outputs: Vec<_> = call.outputs().collect();
        let [quotients, remainders] = &mut outputs[..] else {
            return Err(Error::new(ErrorKind::Plugin, "two outputs"));
        };
        for ((q, r), x) in quotients.as_mut_slice()?.iter_mut().zip(remainders.as_mut_slice()?).zip(x) {
            (*q, *r) = (x / 3, x % 3);
        }
        Ok(())
    }
}

#[test]
fn a_plugin_writes_its_outputs_together() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [3]).expect("an input");
    let q = network.add_plugin("divide", DivideByThree, &[x]).expect("a layer");
    let layer = network.producer(q).expect("a tensor").expect("a layer");
    let r = network.layer_outputs(layer).expect("a layer")[1];
    network.mark_output(q, "q").expect("an output");
    network.mark_output(r, "r").expect("an output");
    assert_eq!((network.inputs(), network.outputs()), (&[x][..], &[q, r][..]));
    let mut context = network.build().expect("an engine").create_execution_context().expect("a context");
    let (mut q, mut r) = ([0; 3], [0; 3]);
    context.execute(inputs!["x" => &[7, 9, 11]], outputs!["q" => &mut q, "r" => &mut r]).expect("a run");
    assert_eq!((q, r), ([2, 3, 3], [1, 0, 2]));
}

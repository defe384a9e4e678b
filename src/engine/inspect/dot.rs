//! An engine as a graph in Graphviz's language.

use std::fmt::Write;

use super::Inspection;
use crate::network::TensorId;
use crate::util::text::{clipped, on_one_line};

impl Inspection {
    /// The inspection as a graph in [Graphviz](https://graphviz.org)'s language, for `dot -Tsvg`:
    /// inputs and outputs are ellipses, layers are boxes, DistCollective layers are grey, and edges
    /// are tensors. A dashed edge is a tensor that may not be written on some rank.
    ///
    /// ```
    /// use distcollective::{DataType, DistCollective, Network, ReduceOperation};
    ///
    /// let mut network = Network::new();
    /// let x = network.add_input("x", DataType::Float32, [4, 8])?;
    /// let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), x)?;
    /// network.mark_output(y, "y")?;
    /// let graph = network.build()?.inspect().to_dot();
    /// assert!(graph.contains("among 2 ranks, sum"));
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    pub fn to_dot(&self) -> String {
        let network = self.network();
        let mut dot = format!("digraph \"engine {}\" {{\n  node [shape=box];\n", self.fingerprint());
        let label_of = |tensor: TensorId| quoted(&on_one_line(&network.tensors[tensor.index()].name));
        // The node from which each tensor comes.
        let mut sources = vec![String::new(); network.tensors.len()];
        for input in &network.inputs {
            let number = input.index();
            sources[number] = format!("input{number}");
            line(&mut dot, &format!("input{number} [shape=ellipse, label={}]", label_of(*input)));
        }
        for (step, id) in self.schedule().iter().enumerate() {
            let layer = &network.layers[id.index()];
            let text = layer.body.op().attributes().text;
            let (name, kind) = (on_one_line(layer.name()), self.kind(layer));
            let label = quoted(format!("{name}\n{kind} {text}").trim_end());
            let color = layer.collective().map_or("", |_| ", style=filled, fillcolor=lightgrey");
            line(&mut dot, &format!("layer{step} [label={label}{color}]"));
            layer.outputs.iter().for_each(|output| sources[output.index()] = format!("layer{step}"));
        }
        let edge = |dot: &mut String, tensor: TensorId, to: &str| {
            let name = on_one_line(&clipped(&network.tensors[tensor.index()].name));
            let label = quoted(&format!("{name}\n{}", self.type_of(tensor)));
            let style = if self.may_be_unwritten(tensor) { ", style=dashed" } else { "" };
            line(dot, &format!("{} -> {to} [label={label}{style}]", sources[tensor.index()]));
        };
        for (step, id) in self.schedule().iter().enumerate() {
            let layer = &network.layers[id.index()];
            layer.inputs.iter().for_each(|&input| edge(&mut dot, input, &format!("layer{step}")));
        }
        for &output in &network.outputs {
            let node = format!("output{}", output.index());
            line(&mut dot, &format!("{node} [shape=ellipse, label={}]", label_of(output)));
            edge(&mut dot, output, &node);
        }
        dot.push_str("}\n");
        dot
    }
}

fn line(dot: &mut String, statement: &str) {
    // Writing into a text does not fail.
    let _ = writeln!(dot, "  {statement};");
}

/// A text as a quoted label.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

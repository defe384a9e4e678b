//! An engine as a graph in Graphviz's language.

use std::fmt::Write;

use super::{Inspection, TensorInspection};
use crate::engine::IoMode;
use crate::util::text::clipped;

impl Inspection {
    /// The inspection as a graph in [Graphviz](https://graphviz.org)'s language, for `dot -Tsvg`:
    /// inputs and outputs are ellipses, layers are boxes, DistCollective layers are grey, and edges
    /// are tensors. A dashed edge is a tensor that may not be written on some rank.
    ///
    /// ```
    /// use distcollective::{Builder, DataType, DistCollective, Network, ReduceOperation};
    ///
    /// let mut network = Network::new();
    /// let x = network.add_input("x", DataType::Float32, [4, 8])?;
    /// let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), x)?;
    /// network.mark_output(y, "y")?;
    /// let graph = Builder::new().build(&network)?.inspect().to_dot();
    /// assert!(graph.contains("among 2 ranks, sum"));
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    pub fn to_dot(&self) -> String {
        let mut dot = format!("digraph \"engine {}\" {{\n  node [shape=box];\n", self.fingerprint);
        // The node from which each tensor comes.
        let mut sources = vec![String::new(); self.tensors.len()];
        let io = |mode| self.io.iter().filter(move |io| io.mode == mode).map(|io| (io.tensor.index(), &io.name));
        for (number, name) in io(IoMode::Input) {
            sources[number] = format!("input{number}");
            line(&mut dot, &format!("input{number} [shape=ellipse, label={}]", quoted(name)));
        }
        for layer in &self.layers {
            let node = format!("layer{}", layer.step);
            let (name, kind) = (&layer.name, &layer.kind);
            let (label, color) = match (&layer.collective, &layer.attributes) {
                (Some(collective), _) => {
                    (format!("{name}\n{kind} {collective}"), ", style=filled, fillcolor=lightgrey")
                }
                (None, Some(attributes)) => (format!("{name}\n{kind} {attributes}"), ""),
                (None, None) => (format!("{name}\n{kind}"), ""),
            };
            line(&mut dot, &format!("{node} [label={}{color}]", quoted(&label)));
            layer.output_indices.iter().for_each(|&tensor| sources[tensor].clone_from(&node));
        }
        for layer in &self.layers {
            for &tensor in &layer.input_indices {
                edge(&mut dot, &sources[tensor], &format!("layer{}", layer.step), &self.tensors[tensor]);
            }
        }
        for (number, name) in io(IoMode::Output) {
            line(&mut dot, &format!("output{number} [shape=ellipse, label={}]", quoted(name)));
            edge(&mut dot, &sources[number], &format!("output{number}"), &self.tensors[number]);
        }
        dot.push_str("}\n");
        dot
    }
}

fn line(dot: &mut String, statement: &str) {
    // Writing into a text does not fail.
    let _ = writeln!(dot, "  {statement};");
}

fn edge(dot: &mut String, from: &str, to: &str, tensor: &TensorInspection) {
    let label = quoted(&format!("{}\n{} {}", clipped(&tensor.name), tensor.data_type, tensor.dims));
    let style = if tensor.may_be_unwritten { ", style=dashed" } else { "" };
    line(dot, &format!("{from} -> {to} [label={label}{style}]"));
}

/// A text as a quoted label.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

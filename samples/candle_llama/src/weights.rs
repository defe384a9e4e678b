//! Random weights in one safetensors file, with the names of the llama checkpoints.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Result, Tensor, safetensors};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::model::Config;

const SEED: u64 = 1024;

/// The names and shapes of all tensors.
fn shapes(config: &Config) -> Vec<(String, Vec<usize>)> {
    let Config { vocab, hidden, intermediate, layers, kv_heads, .. } = *config;
    let kv = kv_heads * config.head_dim();
    let of_block = [
        ("input_layernorm", vec![hidden]),
        ("self_attn.q_proj", vec![hidden, hidden]),
        ("self_attn.k_proj", vec![kv, hidden]),
        ("self_attn.v_proj", vec![kv, hidden]),
        ("self_attn.o_proj", vec![hidden, hidden]),
        ("post_attention_layernorm", vec![hidden]),
        ("mlp.gate_proj", vec![intermediate, hidden]),
        ("mlp.up_proj", vec![intermediate, hidden]),
        ("mlp.down_proj", vec![hidden, intermediate]),
    ];
    let of_model = [
        ("model.embed_tokens.weight", vec![vocab, hidden]),
        ("model.norm.weight", vec![hidden]),
        ("lm_head.weight", vec![vocab, hidden]),
    ];
    let blocks = (0..layers).flat_map(|layer| {
        let named = of_block.iter().cloned();
        named.map(move |(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape))
    });
    blocks.chain(of_model.map(|(name, shape)| (name.to_owned(), shape))).collect()
}

/// Writes the weights, the same ones in every run.
pub fn save(config: &Config, path: &Path) -> Result<()> {
    let mut tensors = HashMap::new();
    for (stream, (name, shape)) in (0..).zip(shapes(config)) {
        let mut numbers = ChaCha20Rng::seed_from_u64(SEED);
        numbers.set_stream(stream);
        let mut uniform = || numbers.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0;
        let count = shape.iter().product();
        let values: Vec<f32> = match *shape {
            // A row of a matrix keeps the variance of what it is multiplied with.
            [_, columns] => (0..count).map(|_| uniform() * (3.0 / columns as f32).sqrt()).collect(),
            _ => (0..count).map(|_| 1.0 + 0.1 * uniform()).collect(),
        };
        tensors.insert(name, Tensor::from_vec(values, shape, &Device::Cpu)?);
    }
    safetensors::save(&tensors, path)
}

//! The programs in README.md and in the guides are tests.

macro_rules! guide {
    ($name:ident, $path:literal) => {
        #[doc = include_str!($path)]
        pub struct $name;
    };
}

guide!(Readme, "../README.md");
guide!(Introduction, "../docs/src/introduction.md");
guide!(Laptop, "../docs/src/laptop.md");
guide!(Launchers, "../docs/src/launchers.md");
guide!(Torch, "../docs/src/torch.md");
guide!(Python, "../docs/src/python.md");
guide!(TensorRt, "../docs/src/tensorrt.md");
guide!(OnnxRuntime, "../docs/src/onnxruntime.md");
guide!(C, "../docs/src/c.md");
guide!(Plugins, "../docs/src/plugins.md");
guide!(Weights, "../docs/src/weights.md");
guide!(Gpus, "../docs/src/gpus.md");
guide!(Errors, "../docs/src/errors.md");
guide!(Waiting, "../docs/src/waiting.md");
guide!(Requests, "../docs/src/requests.md");
guide!(Layers, "../docs/src/layers.md");
guide!(Settings, "../docs/src/settings.md");

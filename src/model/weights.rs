//! Tensors out of a checkpoint's safetensors files, one at a time.
//!
//! Read by position, not mapped: a mapping needs unsafe code, and a file that shrinks under one kills the process. While a
//! tensor is read there is the tensor itself, in the type it is wanted in, and one small buffer. Names come in two layouts
//! (`model.language_model.…`, `model.visual.…` and `language_model.model.…`, `visual.…`); this file makes them one.
//! Knows nothing of what the tensors are for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::Value;

use super::ModelError;

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Longest header: the format's own bound.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Read and converted at a time. A multiple of every element's size.
const BUFFER_BYTES: usize = 1 << 20;

/// Draws a tensor's first values, row by row, from its name and shape.
pub type Draw<'a> = &'a mut dyn FnMut(&str, &[usize]) -> Vec<f32>;

/// A checkpoint's tensors, by their names in the layout of transformers 4.52 and later; or none, and they are drawn.
pub(super) struct Weights<'a> {
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Place>,
    read: BTreeSet<String>,
    draw: Option<Draw<'a>>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    file: File,
}

#[derive(Debug)]
struct Place {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// First byte, counted from the file's start.
    start: u64,
}

impl std::fmt::Debug for Weights<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Weights")
            .field("shards", &self.shards)
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Weights<'a> {
    /// Of a model that has none yet.
    pub(super) const fn drawn(draw: Draw<'a>) -> Self {
        Self { shards: Vec::new(), tensors: BTreeMap::new(), read: BTreeSet::new(), draw: Some(draw) }
    }

    /// Reads the headers of `model.safetensors`, or of the files its index lists. No tensor is read yet.
    ///
    /// # Errors
    /// [`ModelError::Checkpoint`] naming the file that is missing, cut short, or no safetensors file.
    pub(super) fn open(folder: &Path) -> Result<Self, ModelError> {
        let mut weights = Self { shards: Vec::new(), tensors: BTreeMap::new(), read: BTreeSet::new(), draw: None };
        for name in files(folder)? {
            weights.add(folder, name)?;
        }
        Ok(weights)
    }

    fn add(&mut self, folder: &Path, name: String) -> Result<(), ModelError> {
        let wrong = |problem: &dyn std::fmt::Display| ModelError::checkpoint(&name, problem);
        let mut file = File::open(folder.join(&name)).map_err(|error| wrong(&error))?;
        let length = file.metadata().map_err(|error| wrong(&error))?.len();
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(|_| wrong(&"is shorter than a header"))?;
        let header_bytes = u64::from_le_bytes(prefix);
        let data_start = header_bytes.checked_add(8).filter(|start| *start <= length);
        let (Some(data_start), true) = (data_start, header_bytes <= HEADER_BYTES_MAX) else {
            return Err(wrong(&"its header is longer than the file, or than a header may be"));
        };
        let mut header = vec![0; usize::try_from(header_bytes).map_err(|error| wrong(&error))?];
        file.read_exact(&mut header).map_err(|error| wrong(&error))?;
        // Parsing checks that the tensors cover the data without gap or overlap, each as long as its shape says.
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| wrong(&error))?;
        if data_start.checked_add(metadata.data_len() as u64) != Some(length) {
            return Err(wrong(&"is not as long as its header says"));
        }
        for (stored, info) in metadata.tensors() {
            let Some(canonical) = canonical(&stored) else {
                return Err(wrong(&format!("holds a tensor that is not Qwen3-VL's: {stored}")));
            };
            let place = Place {
                shard: self.shards.len(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                start: data_start + info.data_offsets.0 as u64,
            };
            if self.tensors.insert(canonical, place).is_some() {
                return Err(wrong(&format!("holds a tensor twice: {stored}")));
            }
        }
        self.shards.push(Shard { name, file });
        Ok(())
    }

    #[cfg(test)]
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Counts a tensor as read without reading it.
    pub(super) fn ignore(&mut self, name: &str) {
        self.read.insert(name.to_owned());
    }

    /// Reads one tensor onto the CPU.
    ///
    /// # Errors
    /// As [`Weights::read_stacked`].
    pub(super) fn read(&mut self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor, ModelError> {
        let (rows, row) = shape.split_first().map_or((1, &[][..]), |(rows, row)| (*rows, row));
        self.read_stacked(&[(name.to_owned(), rows)], row, dtype)
    }

    /// Reads several tensors onto the CPU as if they were one: `parts` are names with their numbers of rows, `row` is the shape
    /// of each of their rows. `dtype` is f64, f32, bf16 or f16.
    ///
    /// # Errors
    /// [`ModelError::Checkpoint`] when one is missing, has another shape, or is of no such type.
    pub(super) fn read_stacked(
        &mut self,
        parts: &[(String, usize)],
        row: &[usize],
        dtype: DType,
    ) -> Result<Tensor, ModelError> {
        let rows = parts.iter().map(|(_, rows)| rows).sum();
        let shape: Vec<usize> = std::iter::once(rows).chain(row.iter().copied()).collect();
        match dtype {
            DType::F64 => self.values(parts, row, f64::from, shape),
            DType::F32 => self.values(parts, row, |value| value, shape),
            DType::BF16 => self.values(parts, row, bf16::from_f32, shape),
            DType::F16 => self.values(parts, row, f16::from_f32, shape),
            other => {
                Err(ModelError::Options(format!("weights can't be {other:?}: f64, f32, bf16 and f16 are supported")))
            }
        }
    }

    fn values<T: candle_core::WithDType>(
        &mut self,
        parts: &[(String, usize)],
        row: &[usize],
        from: impl Fn(f32) -> T + Copy,
        shape: Vec<usize>,
    ) -> Result<Tensor, ModelError> {
        let mut values = Vec::new();
        for (name, rows) in parts {
            let expected: Vec<usize> = std::iter::once(*rows).chain(row.iter().copied()).collect();
            self.append(name, &expected, from, &mut values)?;
        }
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    }

    fn append<T>(
        &mut self,
        name: &str,
        shape: &[usize],
        from: impl Fn(f32) -> T + Copy,
        values: &mut Vec<T>,
    ) -> Result<(), ModelError> {
        if let Some(draw) = self.draw.as_mut() {
            let drawn = draw(name, shape);
            if drawn.len() != shape.iter().product::<usize>() {
                return Err(ModelError::Options(format!("{} numbers were drawn for {name}, {shape:?}", drawn.len())));
            }
            values.extend(drawn.into_iter().map(from));
            return Ok(());
        }
        let Some(place) = self.tensors.get(name) else {
            return Err(ModelError::checkpoint(WHOLE, format!("the tensor {name} is missing")));
        };
        let shard = &mut self.shards[place.shard];
        let wrong = |problem: String| ModelError::checkpoint(&shard.name, format!("{name} {problem}"));
        if place.shape != shape {
            return Err(wrong(format!("is {:?}, and the configuration asks for {shape:?}", place.shape)));
        }
        let count: usize = shape.iter().product();
        values.try_reserve_exact(count).map_err(|error| wrong(error.to_string()))?;
        let mut source = Source { file: &mut shard.file, left: count };
        let done = source.file.seek(SeekFrom::Start(place.start)).and_then(|_| match place.dtype {
            Dtype::F32 => source.decode::<4, T>(|bytes| from(f32::from_le_bytes(bytes)), values).map(|()| true),
            Dtype::BF16 => {
                source.decode::<2, T>(|bytes| from(bf16::from_le_bytes(bytes).to_f32()), values).map(|()| true)
            }
            Dtype::F16 => {
                source.decode::<2, T>(|bytes| from(f16::from_le_bytes(bytes).to_f32()), values).map(|()| true)
            }
            _ => Ok(false),
        });
        match done {
            Ok(true) => {}
            Ok(false) => return Err(wrong(format!("is {:?}: only F32, BF16 and F16 are read", place.dtype))),
            Err(error) => return Err(wrong(error.to_string())),
        }
        self.read.insert(name.to_owned());
        Ok(())
    }

    /// Checks that nothing was left unread: a tensor that the network has no place for means another network.
    ///
    /// # Errors
    /// [`ModelError::Checkpoint`] naming the first such tensor.
    pub(super) fn finish(self) -> Result<(), ModelError> {
        match self.tensors.iter().find(|(name, _)| !self.read.contains(*name)) {
            Some((name, place)) => Err(ModelError::checkpoint(
                &self.shards[place.shard].name,
                format!("the tensor {name} has no place in the network that config.json describes"),
            )),
            None => Ok(()),
        }
    }
}

/// Elements still to come from a file.
struct Source<'a> {
    file: &'a mut File,
    left: usize,
}

impl Source<'_> {
    fn decode<const SIZE: usize, T>(
        &mut self,
        decode: impl Fn([u8; SIZE]) -> T,
        values: &mut Vec<T>,
    ) -> std::io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES.min(self.left * SIZE)];
        while self.left > 0 {
            let count = self.left.min(BUFFER_BYTES / SIZE);
            let bytes = &mut buffer[..count * SIZE];
            self.file.read_exact(bytes)?;
            let (elements, _) = bytes.as_chunks::<SIZE>();
            values.extend(elements.iter().map(|element| decode(*element)));
            self.left -= count;
        }
        Ok(())
    }
}

/// The name in the one layout that the network asks for. `None`: no name of Qwen3-VL's.
fn canonical(name: &str) -> Option<String> {
    const LAYOUTS: [(&str, &str); 9] = [
        ("model.language_model.", "model.language_model."),
        ("model.visual.", "model.visual."),
        ("lm_head.", "lm_head."),
        ("language_model.model.", "model.language_model."),
        ("language_model.lm_head.", "lm_head."),
        ("visual.", "model.visual."),
        ("model.layers.", "model.language_model.layers."),
        ("model.embed_tokens.", "model.language_model.embed_tokens."),
        ("model.norm.", "model.language_model.norm."),
    ];
    LAYOUTS.iter().find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")))
}

/// `model.safetensors`, or every file that the index lists.
fn files(folder: &Path) -> Result<Vec<String>, ModelError> {
    if folder.join(WHOLE).is_file() {
        return Ok(vec![WHOLE.to_owned()]);
    }
    let bytes = match std::fs::read(folder.join(INDEX)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ModelError::checkpoint(WHOLE, format!("missing, and no {INDEX} either")));
        }
        Err(error) => return Err(ModelError::checkpoint(INDEX, error)),
    };
    let index: Value = serde_json::from_slice(&bytes).map_err(|error| ModelError::checkpoint(INDEX, error))?;
    let map = index["weight_map"].as_object().ok_or_else(|| ModelError::checkpoint(INDEX, "has no weight_map"))?;
    let mut names = BTreeSet::new();
    for file in map.values() {
        // A name, never a path: the index comes with the checkpoint.
        match file.as_str() {
            Some(name) if !name.contains(['/', '\\']) && name.ends_with(".safetensors") => {
                names.insert(name.to_owned())
            }
            _ => return Err(ModelError::checkpoint(INDEX, "lists something that is not a weight file")),
        };
    }
    if names.is_empty() {
        return Err(ModelError::checkpoint(INDEX, "lists no weight files"));
    }
    Ok(names.into_iter().collect())
}

#[cfg(test)]
mod tests;

//! Rows as Parquet, without Arrow: what pyarrow and `datasets` write and read.
//!
//! Conversations have one column of JSON in a string. Prompts have two lists of structs, in the three levels that every writer
//! of today uses, and one column of JSON. All is nullable, as pyarrow makes it, so that tables of both can be joined.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, Repetition, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::record::{Field, Row as Cells};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};
use serde_json::{Map, Value};

use super::file::{MOST_BYTES, Trouble};
use super::row::{Layout, LeftOut, Row};

/// Most bytes of a column of a row group, unpacked. Its pages are unpacked one at a time.
const MOST_COLUMN_BYTES: i64 = 2 << 30;
/// Cells that are read at once.
const BATCH: usize = 64;
/// Bytes of rows, and rows, after which a row group is written.
const GROUP_BYTES: usize = 32 << 20;
const GROUP_ROWS: usize = 1000;

/// A Parquet file that is being read.
pub(super) struct Table {
    file: SerializedFileReader<File>,
    columns: SchemaDescPtr,
    group: usize,
    rows: Option<ReaderIter>,
}

impl Table {
    /// Opens a file, sees the layout by its columns, and names the others.
    pub(super) fn open(path: &Path, left_out: &mut LeftOut) -> Result<(Self, Layout), String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let file = SerializedFileReader::new(file).map_err(|error| error.to_string())?;
        let schema = file.metadata().file_metadata().schema();
        let names: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).collect();
        let Some(layout) = Layout::of(&names) else {
            let there = names.join(", ");
            return Err(format!("has neither messages nor all of prompt, videos and extra_info, but {there}"));
        };
        let (known, other): (Vec<_>, Vec<_>) =
            schema.get_fields().iter().cloned().partition(|field| layout.columns().contains(&field.name()));
        if let Some(odd) = known.iter().find(|field| !is_sound(field)) {
            return Err(format!("column {} is no text, and no list of structs", odd.name()));
        }
        left_out.extend(other.iter().map(|field| field.name().to_owned()));
        let columns = Type::group_type_builder(schema.name()).with_fields(known).build();
        let columns = columns.map_err(|error| error.to_string())?;
        let columns = Arc::new(SchemaDescriptor::new(Arc::new(columns)));
        Ok((Self { file, columns, group: 0, rows: None }, layout))
    }

    /// The next row's columns.
    pub(super) fn next(&mut self) -> Option<Result<Value, Trouble>> {
        loop {
            let row = match &mut self.rows {
                Some(rows) => rows.next(),
                None if self.group == self.file.num_row_groups() => return None,
                None => match self.open_group() {
                    Ok(rows) => self.rows.insert(rows).next(),
                    Err(problem) => return Some(Err(Trouble::File(problem))),
                },
            };
            match row {
                Some(Ok(cells)) => return Some(value(&cells)),
                Some(Err(error)) => return Some(Err(Trouble::File(error.to_string()))),
                None => self.rows = None,
            }
        }
    }

    fn open_group(&mut self) -> Result<ReaderIter, String> {
        let group = self.file.get_row_group(self.group).map_err(|error| error.to_string())?;
        self.group += 1;
        let columns = group.metadata().columns().iter();
        let wanted = columns.filter(|column| {
            let name = column.column_path().parts().first();
            self.columns.root_schema().get_fields().iter().any(|field| Some(field.name()) == name.map(String::as_str))
        });
        if wanted.map(|column| column.uncompressed_size()).any(|bytes| bytes > MOST_COLUMN_BYTES) {
            return Err(format!("a row group has a column of more than {MOST_COLUMN_BYTES} bytes: write smaller ones"));
        }
        let tree = TreeBuilder::new().with_batch_size(BATCH);
        tree.as_iter(Arc::clone(&self.columns), group.as_ref()).map_err(|error| error.to_string())
    }
}

/// Whether the record reader can read a column: it takes well-formed lists and non-empty groups for granted.
fn is_sound(field: &Type) -> bool {
    if field.is_primitive() {
        return true;
    }
    let fields = field.get_fields();
    let is_list = field.get_basic_info().converted_type() == ConvertedType::LIST;
    let is_map = matches!(field.get_basic_info().converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE);
    let is_repeated = |field: &Type| field.get_basic_info().repetition() == Repetition::REPEATED;
    let well_formed = !is_list || (fields.len() == 1 && is_repeated(&fields[0]));
    !is_map && !fields.is_empty() && well_formed && fields.iter().all(|field| is_sound(field))
}

fn value(cells: &Cells) -> Result<Value, Trouble> {
    let mut columns = Map::new();
    for (name, cell) in cells.get_column_iter() {
        let column = Layout::Sft.columns().iter().chain(Layout::Rl.columns()).find(|known| *known == name);
        let wrong = |problem: String| Trouble::Row((column.copied().unwrap_or("row"), problem));
        if size(cell) > MOST_BYTES {
            return Err(wrong(format!("is larger than {MOST_BYTES} bytes")));
        }
        let value = match cell {
            // Text that its writer did not declare as such.
            Field::Bytes(bytes) => {
                let text = std::str::from_utf8(bytes.data()).map_err(|_| wrong("is no UTF-8".to_owned()))?;
                Value::from(text)
            }
            cell => cell.to_json_value(),
        };
        columns.insert(name.clone(), value);
    }
    Ok(Value::Object(columns))
}

fn size(cell: &Field) -> usize {
    match cell {
        Field::Str(text) => text.len(),
        Field::Bytes(bytes) => bytes.len(),
        Field::Group(row) => row.get_column_iter().map(|(_, cell)| size(cell)).sum(),
        Field::ListInternal(list) => list.elements().iter().map(size).sum(),
        _ => 8,
    }
}

const SFT: &str = "message schema { optional binary messages (UTF8); }";
const RL: &str = "message schema {
    optional group prompt (LIST) { repeated group list { optional group element {
        optional binary role (UTF8);
        optional binary content (UTF8);
    } } }
    optional group videos (LIST) { repeated group list { optional group element { optional binary video (UTF8); } } }
    optional binary extra_info (UTF8);
}";

/// A leaf of the schema: its values, and for each the levels that say where it stands.
#[derive(Default)]
struct Leaf {
    values: Vec<ByteArray>,
    /// How many of the nullable and repeated things above and at it are there.
    definition: Vec<i16>,
    /// 0 where a row begins, 1 where its list goes on. Empty for a leaf without a list.
    repetition: Vec<i16>,
}

impl Leaf {
    /// A row's one cell.
    fn cell(&mut self, text: String) {
        self.values.push(text.into_bytes().into());
        self.definition.push(1);
    }

    /// A row's list: the list, its elements, their structs and the field are there, or the list alone.
    fn list<'a>(&mut self, texts: impl ExactSizeIterator<Item = &'a str>) {
        if texts.len() == 0 {
            self.definition.push(1);
            self.repetition.push(0);
        }
        for (at, text) in texts.enumerate() {
            self.values.push(text.into());
            self.definition.push(4);
            self.repetition.push(i16::from(at > 0));
        }
    }
}

/// A Parquet file that is being written. Holds the rows of one group.
pub(super) struct TableWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    leaves: Vec<Leaf>,
    rows: usize,
    bytes: usize,
}

impl<W: Write + Send> TableWriter<W> {
    pub(super) fn begin(file: W, layout: Layout) -> Result<Self, ParquetError> {
        let schema = parse_message_type(match layout {
            Layout::Sft => SFT,
            Layout::Rl => RL,
        })?;
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
        let file = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
        let leaves = file.schema_descr().columns().iter().map(|_| Leaf::default()).collect();
        Ok(Self { file, leaves, rows: 0, bytes: 0 })
    }

    /// Adds a row, of the layout that the file was begun with.
    pub(super) fn add(&mut self, row: &Row) -> Result<(), Trouble> {
        let (column, cell, listed) = match row {
            Row::Sft(row) => ("messages", serde_json::json!(row.messages).to_string(), 0),
            Row::Rl(row) => {
                let prompt = row.prompt.iter().map(|message| message.role.len() + message.content.len());
                let videos = row.videos.iter().map(|video| video.video.len());
                ("extra_info", Value::Object(row.extra_info()).to_string(), prompt.chain(videos).sum())
            }
        };
        let bytes = cell.len() + listed;
        if bytes > MOST_BYTES {
            return Err(Trouble::Row((column, format!("is larger than {MOST_BYTES} bytes"))));
        }
        if let (Row::Rl(row), [role, content, video, _]) = (row, self.leaves.as_mut_slice()) {
            role.list(row.prompt.iter().map(|message| message.role.as_str()));
            content.list(row.prompt.iter().map(|message| message.content.as_str()));
            video.list(row.videos.iter().map(|video| video.video.as_str()));
        }
        if let Some(last) = self.leaves.last_mut() {
            last.cell(cell);
        }
        self.rows += 1;
        self.bytes += bytes;
        if self.rows >= GROUP_ROWS || self.bytes >= GROUP_BYTES {
            self.write_group().map_err(|error| Trouble::File(error.to_string()))?;
        }
        Ok(())
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for leaf in &mut self.leaves {
            let leaf = std::mem::take(leaf);
            let Some(mut column) = group.next_column()? else { break };
            let repetition = (!leaf.repetition.is_empty()).then_some(leaf.repetition.as_slice());
            column.typed::<ByteArrayType>().write_batch(&leaf.values, Some(&leaf.definition), repetition)?;
            column.close()?;
        }
        group.close()?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    /// Writes what is left, and gives the file back.
    pub(super) fn end(mut self) -> Result<W, ParquetError> {
        if self.rows > 0 {
            self.write_group()?;
        }
        self.file.into_inner()
    }
}

//! From the wire's request to the agent's. What can be refused without work is refused here, before a place is taken.

mod cost;
mod files;
mod tools;

use futures::{StreamExt as _, TryStreamExt as _};

use super::error::ApiError;
use crate::agent::{AskOptions, AskPart, AskRequest, AskTurn, ToolCall, VideoPart};
use crate::card::{ModelCard, PixelBudget};
use crate::engine::{Sampling, Supported};
use crate::media::{Media, MediaError, SourceRequest};
use crate::protocol::Invalid;
use crate::protocol::chat::{ChatCompletionRequest, SamplingFields, VideoSampling};
use crate::protocol::content::{Content, ContentPart, MAX_VIDEOS, Message, MessageRole};
use crate::types::{MediaTime, Role};
pub(super) use files::Files;
use files::Found;

/// Name of the served model for callers who don't care which it is.
const ANY_MODEL: &str = "paravt";

/// Pictures fetched and decoded at the same time for one request.
const IMAGES_AT_ONCE: usize = 4;

/// What the answer should look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerShape {
    /// How many answers.
    pub(super) choices: usize,
    /// Server-sent events.
    pub(super) stream: bool,
    /// One more chunk with the usage.
    pub(super) include_usage: bool,
    /// Chunks that tell what happens.
    pub(super) events: bool,
    /// The whole story at the end.
    pub(super) trace: bool,
    /// Small pictures of frames in the chunks that tell of them.
    pub(super) thumbnails: bool,
    /// Log-probabilities of the answer's tokens.
    pub(super) logprobs: bool,
}

impl Default for AnswerShape {
    fn default() -> Self {
        Self {
            choices: 1,
            stream: false,
            include_usage: false,
            events: false,
            trace: false,
            thumbnails: false,
            logprobs: false,
        }
    }
}

/// A request that was found valid. Its pictures are not fetched yet.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) shape: AnswerShape,
    /// The only video, when there is just one: an agent's media error is about it.
    pub(super) only_video: Option<VideoPath>,
    turns: Vec<PlanTurn>,
    prefix: String,
    sampling: Sampling,
    options: AskOptions,
}

/// Where in the request a video is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VideoPath {
    /// Path of its part.
    part: String,
    /// The part's field that names it.
    field: &'static str,
    /// Whether the part says where to start.
    starts: bool,
}

impl VideoPath {
    /// Path of the field that an error of the video's is about.
    pub(super) fn param(&self, error: &MediaError) -> String {
        // A stretch without a frame begins too late: that it ends before it begins is refused before any work.
        let field = if self.starts && matches!(error, MediaError::NoFrames(_)) { "start" } else { self.field };
        format!("{}.{field}", self.part)
    }
}

/// Whether this server answers under that name.
///
/// # Errors
/// [`ApiError::ModelNotFound`].
pub(super) fn check_model(name: &str, card: &ModelCard) -> Result<(), ApiError> {
    if name == ANY_MODEL || name == card.name {
        return Ok(());
    }
    Err(ApiError::ModelNotFound(name.chars().take(80).collect()))
}

#[derive(Debug)]
struct PlanTurn {
    role: Role,
    parts: Vec<PlanPart>,
}

#[derive(Debug)]
enum PlanPart {
    Ready(AskPart),
    Image { source: SourceRequest, param: String },
}

impl Plan {
    /// Checks a request, whose files were looked up, against the model card and what the engine can honour.
    ///
    /// # Errors
    /// [`ApiError::ModelNotFound`], or [`ApiError::Invalid`] for the first field that doesn't fit.
    pub(super) fn new(
        request: ChatCompletionRequest,
        files: &Files,
        card: &ModelCard,
        supported: Supported,
    ) -> Result<Self, ApiError> {
        if !request.model.is_empty() {
            check_model(&request.model, card)?;
        }
        let mut sampling = sampling(request.sampling, supported)?;
        if request.logprobs {
            sampling.logprobs = Some(request.top_logprobs.unwrap_or_default());
        }
        if request.logprobs && !supported.logprobs {
            return Err(not_honoured("logprobs").into());
        }
        // Whoever draws tokens can have the same again: the answer says with which seed.
        let drawn = sampling.temperature.or(card.sampling.temperature).is_none_or(|temperature| temperature > 0.0);
        if drawn && supported.seed {
            // Not above 53 bits: it must survive the numbers of JavaScript.
            sampling.seed = sampling.seed.or_else(|| Some(uuid::Uuid::new_v4().as_u64_pair().0 >> 11));
        }
        let frames = RequestFrames {
            processor: request.mm_processor_kwargs.unwrap_or_default(),
            reader: request.media_io_kwargs.and_then(|io| io.video).unwrap_or_default(),
            most: card.overview.max_frames,
        };
        let mut messages = request.messages;
        let continued = request.continue_final_message;
        let prefix = if continued { messages.pop().map(said).unwrap_or_default() } else { String::new() };
        let last_path = messages.last().map(|last| last.path.clone()).unwrap_or_default();
        let mut videos = Vec::new();
        let turns: Vec<PlanTurn> = messages
            .into_iter()
            .map(|message| turn(message, files, frames, &mut videos))
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .fold(Vec::new(), together);
        if videos.len() > MAX_VIDEOS {
            return Err(Invalid::new("messages", format!("must hold at most {MAX_VIDEOS} videos")).into());
        }

        let has_video = !videos.is_empty();
        let options = request.paravt;
        let agent = options.agent.unwrap_or(has_video && !continued);
        if agent && !has_video {
            return Err(Invalid::new("paravt.agent", "must not be true without a video").into());
        }
        if agent && continued {
            return Err(Invalid::new("paravt.agent", "must not be true with continue_final_message").into());
        }
        for (param, asked, problem) in [
            ("paravt.raw", options.raw && agent, "must not be true with the agent: paravt.agent false"),
            ("paravt.raw", options.raw && !request.tools.is_empty(), "must not be true with tools"),
            ("paravt.thumbnails", options.thumbnails && !options.events, "needs paravt.events"),
            ("paravt.trace", options.trace && request.n > 1, "must not be true with n above 1"),
            ("n", request.n > 1 && continued, "must be 1 with continue_final_message"),
        ] {
            if asked {
                return Err(Invalid::new(param, problem).into());
            }
        }
        if turns.last().is_none_or(|turn| !turn.asks(agent)) {
            let param = format!("{last_path}.content");
            return Err(Invalid::new(param, "must hold a question: some text").into());
        }
        let asked =
            tools::Asked { tools: request.tools, choice: request.tool_choice, format: request.response_format, agent };
        let answering = asked.read(supported)?;
        Ok(Self {
            shape: AnswerShape {
                choices: request.n as usize,
                stream: request.stream,
                include_usage: request.stream_options.unwrap_or_default().include_usage,
                events: options.events,
                trace: options.trace,
                thumbnails: options.thumbnails,
                logprobs: request.logprobs,
            },
            only_video: if videos.len() == 1 { videos.pop() } else { None },
            turns,
            prefix,
            sampling,
            options: AskOptions {
                agent: Some(agent),
                dispatch: options.dispatch,
                max_turns: options.max_turns,
                max_calls: options.max_calls,
                tools: answering.tools,
                client_tools: answering.client_tools,
                form: answering.form,
                raw: options.raw,
                single_call: request.parallel_tool_calls == Some(false),
            },
        })
    }

    /// Whether [`Plan::load`] has anything to do.
    pub(super) fn has_pictures(&self) -> bool {
        self.turns.iter().flat_map(|turn| &turn.parts).any(|part| matches!(part, PlanPart::Image { .. }))
    }

    /// Fetches and decodes the pictures.
    ///
    /// # Errors
    /// [`ApiError::Picture`] for the first picture that can't be used, with its path.
    pub(super) async fn load(self, media: &Media, pixels: &PixelBudget, id: String) -> Result<AskRequest, ApiError> {
        let mut turns = Vec::with_capacity(self.turns.len());
        for PlanTurn { role, parts } in self.turns {
            let parts = futures::stream::iter(parts)
                .map(|part| async {
                    match part {
                        PlanPart::Ready(part) => Ok(part),
                        PlanPart::Image { source, param } => match media.image(&source, pixels).await {
                            Ok(frame) => Ok(AskPart::Image(frame)),
                            Err(error) => Err(ApiError::Picture { error, param }),
                        },
                    }
                })
                .buffered(IMAGES_AT_ONCE)
                .try_collect()
                .await?;
            turns.push(AskTurn { role, parts });
        }
        Ok(AskRequest { turns, sampling: self.sampling, prefix: self.prefix, options: self.options, id, trace: None })
    }
}

impl PlanTurn {
    /// Whether there is a question in it. The agent passes its words on; a plain completion may be about pictures alone.
    fn asks(&self, agent: bool) -> bool {
        self.parts.iter().any(|part| match part {
            PlanPart::Ready(AskPart::Text(text)) => !text.trim().is_empty(),
            PlanPart::Ready(AskPart::ToolResult(_)) => true,
            PlanPart::Ready(_) | PlanPart::Image { .. } => !agent,
        })
    }
}

/// Sampling of the request's own, where each value is one the engine honours. A neutral value asks for nothing.
fn sampling(fields: SamplingFields, supported: Supported) -> Result<Sampling, Invalid> {
    let min_p = fields.min_p.filter(|share| *share > 0.0);
    let repetition_penalty = fields.repetition_penalty.filter(|penalty| *penalty != 1.0);
    for (param, asked, honoured) in [
        ("seed", fields.seed.is_some(), supported.seed),
        ("min_p", min_p.is_some(), supported.min_p),
        ("top_k", fields.top_k.is_some(), supported.top_k),
        ("repetition_penalty", repetition_penalty.is_some(), supported.repetition_penalty),
        ("ignore_eos", fields.ignore_eos, supported.ignore_eos),
    ] {
        if asked && !honoured {
            return Err(not_honoured(param));
        }
    }
    Ok(Sampling {
        temperature: fields.temperature,
        top_p: fields.top_p,
        top_k: fields.top_k,
        min_p: fields.min_p.filter(|_| supported.min_p),
        frequency_penalty: fields.frequency_penalty,
        presence_penalty: fields.presence_penalty,
        repetition_penalty: fields.repetition_penalty.filter(|_| supported.repetition_penalty),
        seed: fields.seed,
        stop: fields.stop,
        // 0 stands for the model card's, which bounds what is asked for too: the agent sees to both.
        max_tokens: fields.max_completion_tokens.or(fields.max_tokens).unwrap_or_default(),
        ignore_eos: fields.ignore_eos,
        logprobs: None,
        constraint: None,
    })
}

/// A field that the engine can't honour: refused, since to ignore it would change the answer.
fn not_honoured(param: &str) -> Invalid {
    Invalid {
        param: param.to_owned(),
        problem: "is not supported by this server's engine".to_owned(),
        code: "unsupported_parameter",
    }
}

/// Results of several tools are one turn: they answer one burst of calls.
fn together(mut turns: Vec<PlanTurn>, turn: PlanTurn) -> Vec<PlanTurn> {
    let results = |turn: &PlanTurn| matches!(turn.parts.first(), Some(PlanPart::Ready(AskPart::ToolResult(_))));
    match turns.last_mut().filter(|last| results(last) && results(&turn)) {
        Some(last) => last.parts.extend(turn.parts),
        None => turns.push(turn),
    }
    turns
}

/// Frames as the request's vLLM fields ask for them.
#[derive(Clone, Copy)]
struct RequestFrames {
    processor: VideoSampling,
    reader: VideoSampling,
    /// The card's bound.
    most: u32,
}

fn turn(
    message: Message,
    files: &Files,
    frames: RequestFrames,
    videos: &mut Vec<VideoPath>,
) -> Result<PlanTurn, ApiError> {
    let role = match message.role {
        MessageRole::System | MessageRole::Developer => Role::System,
        MessageRole::User => Role::User,
        MessageRole::Assistant => Role::Assistant,
        MessageRole::Tool => {
            let result = PlanPart::Ready(AskPart::ToolResult(said(message)));
            return Ok(PlanTurn { role: Role::User, parts: vec![result] });
        }
    };
    let calls = message.tool_calls.into_iter().map(|call| {
        let (name, arguments) = (call.function.name, call.function.arguments);
        PlanPart::Ready(AskPart::ToolCall(ToolCall { name, arguments }))
    });
    let parts: Vec<PlanPart> = match message.content {
        Content::Text(text) => vec![PlanPart::Ready(AskPart::Text(text))],
        Content::Parts(parts) => parts
            .into_iter()
            .enumerate()
            .map(|(part_place, part)| {
                let path = format!("{}.content[{part_place}]", message.path);
                self::part(path, part, files, frames, videos)
            })
            .collect::<Result<_, _>>()?,
    };
    Ok(PlanTurn { role, parts: parts.into_iter().chain(calls).collect() })
}

fn part(
    path: String,
    part: ContentPart,
    files: &Files,
    frames: RequestFrames,
    videos: &mut Vec<VideoPath>,
) -> Result<PlanPart, ApiError> {
    let (Found { source, is_picture, field }, own) = match part {
        ContentPart::Text(part) => return Ok(PlanPart::Ready(AskPart::Text(part.text))),
        ContentPart::ImageUrl(part) => {
            let source = SourceRequest::Url(part.image_url.url);
            (Found { source, is_picture: true, field: part.url_field }, OwnFrames::default())
        }
        ContentPart::VideoUrl(part) => {
            let own = OwnFrames { start: part.start, end: part.end, fps: part.fps, max_frames: part.max_frames };
            let source = SourceRequest::Url(part.video_url.url);
            (Found { source, is_picture: false, field: part.url_field }, own)
        }
        ContentPart::File(part) => {
            let own = OwnFrames { start: part.start, end: part.end, fps: part.fps, max_frames: part.max_frames };
            (files.find(part.file).ok_or(ApiError::Internal)?, own)
        }
    };
    if is_picture {
        return Ok(PlanPart::Image { source, param: format!("{path}.{field}") });
    }
    videos.push(VideoPath { part: path, field, starts: own.start.is_some() });
    Ok(PlanPart::Ready(AskPart::Video(video(source, own, frames))))
}

/// What a message says whose parts are text alone.
fn said(message: Message) -> String {
    match message.content {
        Content::Text(text) => text,
        Content::Parts(parts) => parts
            .into_iter()
            .filter_map(|part| if let ContentPart::Text(part) = part { Some(part.text) } else { None })
            .collect(),
    }
}

/// Frames as a part asks for them.
#[derive(Clone, Copy, Default)]
struct OwnFrames {
    start: Option<MediaTime>,
    end: Option<MediaTime>,
    fps: Option<f64>,
    max_frames: Option<u32>,
}

/// The part's own fields win over `mm_processor_kwargs`, and those over `media_io_kwargs`: the nearest to the video first.
fn video(source: SourceRequest, own: OwnFrames, RequestFrames { processor, reader, most }: RequestFrames) -> VideoPart {
    let (fps, frames) = if own.fps.is_some() || own.max_frames.is_some() {
        (own.fps, None)
    } else if processor != VideoSampling::default() {
        (processor.fps, processor.num_frames)
    } else {
        (reader.fps, reader.num_frames)
    };
    // vLLM's reader takes a rate and a number together: the number is then the most there may be.
    let (frames, limit) = if fps.is_some() { (None, frames) } else { (frames, None) };
    VideoPart {
        source,
        start: own.start,
        end: own.end,
        fps,
        max_frames: own.max_frames.or(limit),
        frames: frames.map(|frames| frames.min(most)),
    }
}

#[cfg(test)]
mod tests;

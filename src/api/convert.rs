//! From the wire's request to the agent's. What can be refused without work is refused here, before a place is taken.

use futures::{StreamExt as _, TryStreamExt as _};

use super::error::ApiError;
use crate::agent::{AskOptions, AskPart, AskRequest, AskTurn, ToolUse, VideoPart};
use crate::card::{ModelCard, PixelBudget};
use crate::engine::{Sampling, Supported};
use crate::media::{Media, MediaError, SourceRequest};
use crate::protocol::Invalid;
use crate::protocol::chat::{ChatCompletionRequest, SamplingFields, ToolChoice, VideoSampling};
use crate::protocol::content::{Content, ContentPart, Message, MessageRole, VideoUrlPart};
use crate::types::Role;

/// Name of the served model for callers who don't care which it is.
const ANY_MODEL: &str = "paravt";

/// Pictures fetched and decoded at the same time for one request.
const IMAGES_AT_ONCE: usize = 4;

/// What the answer should look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AnswerShape {
    /// Server-sent events.
    pub(super) stream: bool,
    /// One more chunk with the usage.
    pub(super) include_usage: bool,
    /// Chunks that tell what happens.
    pub(super) events: bool,
    /// The whole story at the end.
    pub(super) trace: bool,
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
    /// Whether the part says where to start.
    starts: bool,
}

impl VideoPath {
    /// Path of the field that an error of the video's is about.
    pub(super) fn param(&self, error: &MediaError) -> String {
        // A stretch without a frame begins too late: that it ends before it begins is refused before any work.
        let field = if self.starts && matches!(error, MediaError::NoFrames(_)) { "start" } else { "video_url.url" };
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
    /// Checks a request against the model card and what the engine can honour.
    ///
    /// # Errors
    /// [`ApiError::ModelNotFound`], or [`ApiError::Invalid`] for the first field that doesn't fit.
    pub(super) fn new(
        request: ChatCompletionRequest,
        card: &ModelCard,
        supported: Supported,
    ) -> Result<Self, ApiError> {
        if !request.model.is_empty() {
            check_model(&request.model, card)?;
        }
        let sampling = sampling(request.sampling, supported)?;
        let frames = RequestFrames {
            processor: request.mm_processor_kwargs.unwrap_or_default(),
            reader: request.media_io_kwargs.and_then(|io| io.video).unwrap_or_default(),
            most: card.overview.max_frames,
        };
        let mut messages = request.messages;
        let continued = request.continue_final_message;
        let prefix = if continued { messages.pop().map(said).unwrap_or_default() } else { String::new() };
        let mut videos = Vec::new();
        let turns: Vec<PlanTurn> = messages
            .into_iter()
            .enumerate()
            .map(|(place, message)| turn(place, message, frames, &mut videos))
            .collect();

        let has_video = !videos.is_empty();
        let options = request.paravt;
        let agent = options.agent.unwrap_or(has_video && !continued);
        if agent && !has_video {
            return Err(Invalid::new("paravt.agent", "must not be true without a video").into());
        }
        if agent && continued {
            return Err(Invalid::new("paravt.agent", "must not be true with continue_final_message").into());
        }
        if turns.last().is_none_or(|turn| !turn.asks(agent)) {
            let param = format!("messages[{}].content", turns.len().saturating_sub(1));
            return Err(Invalid::new(param, "must hold a question: some text").into());
        }
        if request.tool_choice == Some(ToolChoice::Required) && !agent {
            let problem = "must not be \"required\" without a video, or with paravt.agent false";
            return Err(Invalid::new("tool_choice", problem).into());
        }
        Ok(Self {
            shape: AnswerShape {
                stream: request.stream,
                include_usage: request.stream_options.unwrap_or_default().include_usage,
                events: options.events,
                trace: options.trace,
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
                tools: match request.tool_choice {
                    Some(ToolChoice::None) => ToolUse::None,
                    Some(ToolChoice::Required) => ToolUse::Required,
                    Some(ToolChoice::Auto) | None => ToolUse::Auto,
                },
            },
        })
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
        Ok(AskRequest { turns, sampling: self.sampling, prefix: self.prefix, options: self.options, id })
    }
}

impl PlanTurn {
    /// Whether there is a question in it. The agent passes its words on; a plain completion may be about pictures alone.
    fn asks(&self, agent: bool) -> bool {
        self.parts.iter().any(|part| match part {
            PlanPart::Ready(AskPart::Text(text)) => !text.trim().is_empty(),
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
            return Err(Invalid {
                param: param.to_owned(),
                problem: "is not supported by this server's engine".to_owned(),
                code: "unsupported_parameter",
            });
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

/// Frames as the request's vLLM fields ask for them.
#[derive(Clone, Copy)]
struct RequestFrames {
    processor: VideoSampling,
    reader: VideoSampling,
    /// The card's bound.
    most: u32,
}

fn turn(place: usize, message: Message, frames: RequestFrames, videos: &mut Vec<VideoPath>) -> PlanTurn {
    let role = match message.role {
        MessageRole::System | MessageRole::Developer => Role::System,
        MessageRole::User => Role::User,
        MessageRole::Assistant => Role::Assistant,
    };
    let parts = match message.content {
        Content::Text(text) => vec![PlanPart::Ready(AskPart::Text(text))],
        Content::Parts(parts) => parts
            .into_iter()
            .enumerate()
            .map(|(part_place, part)| {
                let path = format!("messages[{place}].content[{part_place}]");
                match part {
                    ContentPart::Text(part) => PlanPart::Ready(AskPart::Text(part.text)),
                    ContentPart::ImageUrl(part) => {
                        let param = format!("{path}.image_url.url");
                        PlanPart::Image { source: SourceRequest::Url(part.image_url.url), param }
                    }
                    ContentPart::VideoUrl(part) => {
                        videos.push(VideoPath { part: path, starts: part.start.is_some() });
                        PlanPart::Ready(AskPart::Video(video(part, frames)))
                    }
                }
            })
            .collect(),
    };
    PlanTurn { role, parts }
}

/// What an assistant's message says. Its parts are text alone.
fn said(message: Message) -> String {
    match message.content {
        Content::Text(text) => text,
        Content::Parts(parts) => parts
            .into_iter()
            .filter_map(|part| if let ContentPart::Text(part) = part { Some(part.text) } else { None })
            .collect(),
    }
}

/// The part's own fields win over `mm_processor_kwargs`, and those over `media_io_kwargs`: the nearest to the video first.
fn video(part: VideoUrlPart, RequestFrames { processor, reader, most }: RequestFrames) -> VideoPart {
    let own = part.fps.is_some() || part.max_frames.is_some();
    let (fps, frames) = if own {
        (part.fps, None)
    } else if processor != VideoSampling::default() {
        (processor.fps, processor.num_frames)
    } else {
        (reader.fps, reader.num_frames)
    };
    // vLLM's reader takes a rate and a number together: the number is then the most there may be.
    let (frames, limit) = if fps.is_some() { (None, frames) } else { (frames, None) };
    VideoPart {
        source: SourceRequest::Url(part.video_url.url),
        start: part.start,
        end: part.end,
        fps,
        max_frames: part.max_frames.or(limit),
        frames: frames.map(|frames| frames.min(most)),
    }
}

#[cfg(test)]
mod tests;

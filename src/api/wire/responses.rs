//! From the agent's events to a response: its items in the order they began, and the events of its stream. Pure.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Envelope, logprobs, usage};
use crate::agent::{AgentEvent, Outcome, ToolCall, WindowRecord, WindowStatus};
use crate::api::error::ApiError;
use crate::api::observe::Told;
use crate::api::sse::{Line, Writer};
use crate::engine::FinishReason;
use crate::protocol::completion::Timing;
use crate::protocol::logprobs::TokenLogprob;
use crate::protocol::responses::{
    Echo, FunctionCallItem, IncompleteDetails, InputDetails, ItemPart, ItemPlace, ItemStatus, MessageItem,
    OutputDetails, OutputItem, OutputText, PartPlace, ReasoningConfig, ReasoningItem, ReasoningText, ResponseFailure,
    ResponseObject, ResponseStatus, ResponseStreamEvent as Event, ResponseUsage, Sequenced, TextConfig, WindowError,
    WindowItem,
};
use crate::types::MediaTime;

/// Follows one episode and tells its response.
pub(in crate::api) struct ResponseWriter {
    envelope: Envelope,
    response: ResponseObject,
    /// The text item being written, which is the last one of `response.output` that is not a window.
    open: Option<usize>,
    /// Places of windows in the output, by their number.
    windows: BTreeMap<usize, usize>,
    /// Tokens of the answer's next piece.
    tokens: Vec<TokenLogprob>,
    timing: Option<Timing>,
    sequence: u64,
    over: bool,
}

impl ResponseWriter {
    pub(in crate::api) fn new(envelope: Envelope, echo: Echo) -> Self {
        let response = ResponseObject {
            id: envelope.id.clone(),
            object: "response",
            created_at: envelope.created,
            status: ResponseStatus::InProgress,
            background: false,
            error: None,
            incomplete_details: None,
            instructions: echo.instructions,
            max_output_tokens: echo.max_output_tokens,
            model: envelope.model.clone(),
            output: Vec::new(),
            parallel_tool_calls: echo.parallel_tool_calls,
            previous_response_id: None,
            reasoning: ReasoningConfig::default(),
            store: false,
            temperature: None,
            text: TextConfig { format: echo.format },
            tool_choice: echo.tool_choice,
            tools: echo.tools,
            top_logprobs: echo.top_logprobs,
            top_p: None,
            truncation: "disabled",
            usage: None,
            user: echo.user,
            metadata: echo.metadata,
            paravt: None,
        };
        Self {
            envelope,
            response,
            open: None,
            windows: BTreeMap::new(),
            tokens: Vec::new(),
            timing: None,
            sequence: 0,
            over: false,
        }
    }

    /// The whole answer with where its time went, once it is over.
    pub(in crate::api) fn into_response(self) -> Option<(ResponseObject, Timing)> {
        self.timing.map(|timing| (self.response, timing))
    }

    /// Takes in one thing that happened, and gives the events of it in order.
    pub(in crate::api) fn take(&mut self, told: Told) -> Vec<Event> {
        let mut out = Vec::new();
        match told.event {
            AgentEvent::Reasoning(text) => self.reasoning(&text, &mut out),
            AgentEvent::AnswerTokens(tokens) => self.tokens.extend(logprobs(&tokens).content),
            AgentEvent::Answer(text) => self.answer(text, &mut out),
            AgentEvent::ToolCall(call) => self.call(&call, &mut out),
            AgentEvent::WindowStarted { id, video, window, .. } => {
                self.window(id, video, Some((window.start, window.end)), &mut out);
            }
            AgentEvent::WindowFinished(record) => self.window_over(record, &mut out),
            AgentEvent::Finished(outcome) => self.finish(&outcome, &mut out),
            AgentEvent::Overview(_)
            | AgentEvent::TurnStarted { .. }
            | AgentEvent::TurnFinished(_)
            | AgentEvent::WindowFrames { .. }
            | AgentEvent::WindowDelta { .. } => {}
        }
        out
    }

    fn item_id(&self, kind: &str) -> String {
        format!("{kind}_{}_{}", self.envelope.id.trim_start_matches("resp_"), self.response.output.len())
    }

    fn add(&mut self, item: OutputItem, out: &mut Vec<Event>) -> usize {
        let output_index = self.response.output.len();
        self.response.output.push(item.clone());
        out.push(Event::ItemAdded { output_index, item });
        output_index
    }

    fn done(&self, output_index: usize, out: &mut Vec<Event>) {
        out.extend(
            self.response.output.get(output_index).map(|item| Event::ItemDone { output_index, item: item.clone() }),
        );
    }

    fn place(&self, output_index: usize) -> ItemPlace {
        let item_id = self.response.output.get(output_index).map(|item| item.id().to_owned()).unwrap_or_default();
        ItemPlace { item_id, output_index }
    }

    fn part_place(&self, output_index: usize) -> PartPlace {
        let ItemPlace { item_id, output_index } = self.place(output_index);
        PartPlace { item_id, output_index, content_index: 0 }
    }

    fn reasoning(&mut self, text: &str, out: &mut Vec<Event>) {
        let open = self.open.filter(|place| matches!(self.response.output.get(*place), Some(OutputItem::Reasoning(_))));
        // Between turns there is a blank line; here each turn has an item of its own.
        let text = if open.is_none() { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        let place = open.unwrap_or_else(|| {
            self.close(ItemStatus::Completed, out);
            let (id, status) = (self.item_id("rs"), ItemStatus::InProgress);
            let place =
                self.add(OutputItem::Reasoning(ReasoningItem { id, status, summary: [], content: vec![] }), out);
            let part = ItemPart::Reasoning(ReasoningText::new(String::new()));
            out.push(Event::PartAdded { place: self.part_place(place), part });
            if let Some(OutputItem::Reasoning(item)) = self.response.output.get_mut(place) {
                item.content.push(ReasoningText::new(String::new()));
            }
            self.open = Some(place);
            place
        });
        if let Some(OutputItem::Reasoning(item)) = self.response.output.get_mut(place) {
            item.content.iter_mut().for_each(|part| part.text.push_str(text));
        }
        out.push(Event::ReasoningDelta { place: self.part_place(place), delta: text.to_owned() });
    }

    fn answer(&mut self, text: String, out: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        let open = self.open.filter(|place| matches!(self.response.output.get(*place), Some(OutputItem::Message(_))));
        let place = open.unwrap_or_else(|| self.open_message(out));
        let logprobs = std::mem::take(&mut self.tokens);
        if let Some(part) = self.message_part(place) {
            part.text.push_str(&text);
            part.logprobs.extend_from_slice(&logprobs);
        }
        out.push(Event::TextDelta { place: self.part_place(place), delta: text, logprobs });
    }

    fn open_message(&mut self, out: &mut Vec<Event>) -> usize {
        self.close(ItemStatus::Completed, out);
        let (id, status) = (self.item_id("msg"), ItemStatus::InProgress);
        let item = MessageItem { id, status, role: "assistant", content: Vec::new() };
        let place = self.add(OutputItem::Message(item), out);
        let empty = OutputText::new(String::new());
        out.push(Event::PartAdded { place: self.part_place(place), part: ItemPart::Text(empty.clone()) });
        if let Some(OutputItem::Message(item)) = self.response.output.get_mut(place) {
            item.content.push(empty);
        }
        self.open = Some(place);
        place
    }

    fn message_part(&mut self, place: usize) -> Option<&mut OutputText> {
        match self.response.output.get_mut(place)? {
            OutputItem::Message(item) => item.content.first_mut(),
            _ => None,
        }
    }

    /// Ends the text item being written, if there is one.
    fn close(&mut self, end: ItemStatus, out: &mut Vec<Event>) {
        let Some(output_index) = self.open.take() else { return };
        let place = self.part_place(output_index);
        match self.response.output.get_mut(output_index) {
            Some(OutputItem::Reasoning(item)) => {
                item.status = end;
                let text: String = item.content.iter().map(|part| part.text.as_str()).collect();
                out.push(Event::ReasoningDone { place: place.clone(), text: text.clone() });
                out.push(Event::PartDone { place, part: ItemPart::Reasoning(ReasoningText::new(text)) });
            }
            Some(OutputItem::Message(item)) => {
                item.status = end;
                if let Some(part) = item.content.first().cloned() {
                    let (text, logprobs) = (part.text.clone(), part.logprobs.clone());
                    out.push(Event::TextDone { place: place.clone(), text, logprobs });
                    out.push(Event::PartDone { place, part: ItemPart::Text(part) });
                }
            }
            _ => return,
        }
        self.done(output_index, out);
    }

    fn window(&mut self, id: usize, video: usize, span: Option<(MediaTime, MediaTime)>, out: &mut Vec<Event>) -> usize {
        if let Some(place) = self.windows.get(&id) {
            return *place;
        }
        self.close(ItemStatus::Completed, out);
        let arguments = match span {
            Some((start, end)) => {
                json!({"video": video, "start_time": start.seconds(), "end_time": end.seconds()}).to_string()
            }
            None => json!({"video": video}).to_string(),
        };
        let item = WindowItem {
            id: self.item_id("mcp"),
            status: ItemStatus::InProgress,
            server_label: "paravt",
            name: "crop_video",
            arguments: arguments.clone(),
            output: None,
            error: None,
            approval_request_id: None,
        };
        let place = self.add(OutputItem::McpCall(item), out);
        self.windows.insert(id, place);
        out.push(Event::WindowInProgress { place: self.place(place) });
        out.push(Event::WindowArguments { place: self.place(place), arguments });
        place
    }

    fn window_over(&mut self, record: WindowRecord, out: &mut Vec<Event>) {
        let place = self.window(record.id, record.video, record.start.zip(record.end), out);
        let well = matches!(record.status, WindowStatus::Ok | WindowStatus::Shared);
        if let Some(OutputItem::McpCall(item)) = self.response.output.get_mut(place) {
            item.status = if well { ItemStatus::Completed } else { ItemStatus::Failed };
            item.output = record.summary;
            item.error = record.error.map(WindowError::new);
        }
        let place_of = self.place(place);
        out.push(if well {
            Event::WindowCompleted { place: place_of }
        } else {
            Event::WindowFailed { place: place_of }
        });
        self.done(place, out);
    }

    fn call(&mut self, call: &ToolCall, out: &mut Vec<Event>) {
        self.close(ItemStatus::Completed, out);
        let arguments = serde_json::to_string(&call.arguments).unwrap_or_default();
        let item = |id: String, call_id: String, arguments: String, status| {
            OutputItem::FunctionCall(FunctionCallItem { id, call_id, name: call.name.clone(), arguments, status })
        };
        let (id, call_id) = (self.item_id("fc"), self.item_id("call"));
        let place = self.add(item(id.clone(), call_id.clone(), String::new(), ItemStatus::InProgress), out);
        out.push(Event::ArgumentsDelta { place: self.place(place), delta: arguments.clone() });
        let (name, whole) = (call.name.clone(), arguments.clone());
        out.push(Event::ArgumentsDone { place: self.place(place), name, arguments: whole });
        if let Some(added) = self.response.output.get_mut(place) {
            *added = item(id, call_id, arguments, ItemStatus::Completed);
        }
        self.done(place, out);
    }

    fn finish(&mut self, outcome: &Outcome, out: &mut Vec<Event>) {
        // A stream and a plain answer hold the same text, even where the answer was known only at the end.
        let told: String = self.response.output.iter().filter_map(said).collect();
        self.answer(outcome.answer.strip_prefix(told.as_str()).unwrap_or_default().to_owned(), out);
        let cut = outcome.finish_reason == FinishReason::Length;
        let is_message = |item: &OutputItem| matches!(item, OutputItem::Message(_));
        if outcome.tool_calls.is_empty() && !self.response.output.iter().any(is_message) {
            // An empty answer is an answer too.
            self.open_message(out);
        }
        self.close(if cut { ItemStatus::Incomplete } else { ItemStatus::Completed }, out);
        let outcomes = std::slice::from_ref(outcome);
        let result = self.envelope.result(outcomes);
        self.response.status = if cut { ResponseStatus::Incomplete } else { ResponseStatus::Completed };
        self.response.incomplete_details = cut.then_some(IncompleteDetails { reason: "max_output_tokens" });
        self.response.temperature = result.sampling.temperature;
        self.response.top_p = result.sampling.top_p;
        self.timing = Some(result.timing);
        self.response.paravt = Some(result);
        let usage = usage(outcomes);
        self.response.usage = Some(ResponseUsage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: usage.prompt_tokens_details.cached_tokens },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: usage.completion_tokens_details.reasoning_tokens },
            total_tokens: usage.total_tokens,
            paravt: usage.paravt,
        });
        self.over = true;
        let response = self.response.clone();
        out.push(if cut { Event::Incomplete { response } } else { Event::Completed { response } });
    }

    fn lines(&mut self, events: Vec<Event>) -> Vec<Line> {
        let line = |event: Event| {
            let name = event.name();
            let sequence_number = self.sequence;
            self.sequence += 1;
            Line::named(name, &Sequenced { event, sequence_number })
        };
        events.into_iter().map(line).collect()
    }
}

/// What an item says of the answer.
fn said(item: &OutputItem) -> Option<&str> {
    match item {
        OutputItem::Message(item) => item.content.first().map(|part| part.text.as_str()),
        _ => None,
    }
}

impl Writer for ResponseWriter {
    fn open(&mut self) -> Vec<Line> {
        let response = self.response.clone();
        self.lines(vec![Event::Created { response: response.clone() }, Event::InProgress { response }])
    }

    fn shows(&self, event: &AgentEvent) -> bool {
        matches!(
            event,
            AgentEvent::Reasoning(_)
                | AgentEvent::Answer(_)
                | AgentEvent::ToolCall(_)
                | AgentEvent::WindowStarted { .. }
                | AgentEvent::WindowFinished(_)
                | AgentEvent::Finished(_)
        )
    }

    fn write(&mut self, told: Told) -> Vec<Line> {
        let events = self.take(told);
        self.lines(events)
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Line> {
        let mut out = Vec::new();
        self.close(ItemStatus::Incomplete, &mut out);
        for place in 0..self.response.output.len() {
            if let Some(OutputItem::McpCall(item)) = self.response.output.get_mut(place)
                && item.status == ItemStatus::InProgress
            {
                item.status = ItemStatus::Incomplete;
                self.done(place, &mut out);
            }
        }
        let detail = error.body().error;
        let code = match detail.kind {
            "rate_limit_error" => "rate_limit_exceeded",
            "invalid_request_error" => "invalid_prompt",
            _ => "server_error",
        };
        self.response.status = ResponseStatus::Failed;
        self.response.error = Some(ResponseFailure { code, message: detail.message });
        out.push(Event::Failed { response: self.response.clone() });
        self.lines(out)
    }
}

#[cfg(test)]
mod tests;

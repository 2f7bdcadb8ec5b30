//! Draws a view, at 80 columns and wider.

use std::time::Duration;

use ratatui::{
    Frame,
    layout::{
        Constraint::{Fill, Length, Min},
        Layout, Rect,
    },
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row, Sparkline, Table, Wrap},
};
use reveille::{LatencyBuckets, ListenerInfo, Stats, duration};

use serde_json::Value;

use super::view::{QueueRow, View};
use crate::{
    listeners::{listens_to, state_for},
    output::{self, count},
};

/// Further findings below the verdict.
const FINDINGS: usize = 3;

const QUIET: Style = Style::new().add_modifier(Modifier::DIM);
const HEADER: Style = Style::new().add_modifier(Modifier::BOLD);

pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let reasons = reasons(view);
    let further = u16::try_from(reasons.len()).unwrap_or_default();
    let rows = [1, 2, further, 1, 2, 1, 3, 1].map(Length);
    let rows = rows.into_iter().chain([Min(3), Length(1)]);
    let areas = Layout::vertical(rows).split(frame.area());
    let title = format!("reveille top  {}", title(&view.stats));
    frame.render_widget(Line::from(title), areas[0]);
    let verdict = Paragraph::new(verdict(view)).wrap(Wrap { trim: true });
    frame.render_widget(verdict, areas[1]);
    frame.render_widget(Paragraph::new(reasons), areas[2]);
    figures(frame, areas[4], view);
    line_of_notifications(frame, areas[6], view);
    let list = if view.lists_listeners {
        listeners(frame, areas[8], view);
        "l queues".to_owned()
    } else {
        queues(frame, areas[8], view);
        format!("o queues by {}   l listeners", view.order().1)
    };
    let keys = format!("{list}   q end");
    frame.render_widget(Line::styled(keys, QUIET), areas[9]);
}

/// Returns the figures as text.
pub(super) fn text(view: &View) -> String {
    let mut lines = vec![title(&view.stats), sentence(view)];
    let further = view.stats.findings.iter().skip(1);
    lines.extend(further.map(|finding| format!("  {}", finding.text)));
    lines.push(String::new());
    let (mut heads, mut row) = (Vec::new(), Value::default());
    for (head, value) in columns(view) {
        heads.push(head);
        row[head] = value.into();
    }
    lines.push(output::table_of(&heads.join(" "), &[row]));
    lines.join("\n")
}

fn title(stats: &Stats) -> String {
    let Some(relay) = stats.relays.first() else {
        return "no relay".to_owned();
    };
    let others = match stats.relays.len() as u64 - 1 {
        0 => String::new(),
        others => format!(" and {}", count(others, "other relay")),
    };
    let up = duration::Span(Duration::from_secs(relay.uptime.as_secs()));
    format!("{}{others}, up {up}", relay.relay_id)
}

fn verdict(view: &View) -> Line<'static> {
    let color = match (&view.lost, view.stats.findings.first()) {
        (Some(_), _) => Color::Red,
        (None, Some(finding)) if finding.urgent => Color::Red,
        (None, Some(_)) => Color::Yellow,
        (None, None) => Color::Green,
    };
    let style = Style::new().fg(color).add_modifier(Modifier::BOLD);
    Line::styled(sentence(view), style)
}

fn sentence(view: &View) -> String {
    let levels = &view.stats.levels;
    match (&view.lost, view.stats.findings.first()) {
        (Some(why), _) => format!("the figures are old: {why}; reading again"),
        (None, Some(worst)) => worst.text.clone(),
        (None, None) => {
            let all = count(levels.subscriptions, "listener");
            format!("nothing is wrong: {} of {all} asleep", levels.asleep)
        }
    }
}

fn reasons(view: &View) -> Vec<Line<'static>> {
    let further = view.stats.findings.iter().skip(1).take(FINDINGS);
    let lines = further.map(|finding| Line::from(format!("  {}", finding.text)));
    lines.collect()
}

/// Returns the names and the values of the figures.
fn columns(view: &View) -> Vec<(&'static str, String)> {
    let (levels, savings) = (&view.stats.levels, &view.stats.savings);
    vec![
        ("NOTIFIED", format!("{:.1}", view.rates.notified)),
        ("WOKEN", format!("{:.1}", view.rates.woken)),
        ("ASLEEP", levels.asleep.to_string()),
        ("AWAKE", levels.awake.to_string()),
        ("POLLING", levels.polling.to_string()),
        ("TASKS", levels.active_dequeue_tasks.to_string()),
        ("WAKE_P50", latency(&view.rates.wake, 50)),
        ("P99", latency(&view.rates.wake, 99)),
        ("POLLS_SAVED", savings.polls_avoided.to_string()),
        (
            "SAVED",
            format!("{:.2} {}", savings.price(), savings.currency),
        ),
    ]
}

fn figures(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let columns = columns(view);
    let width = |(head, value): &(&str, String)| {
        Length(u16::try_from(head.len().max(value.len())).unwrap_or(20))
    };
    let widths: Vec<_> = columns.iter().map(width).collect();
    let heads = columns.iter().map(|(head, _)| head.replace('_', " "));
    let heads = heads.map(|head| right(&head, HEADER));
    let values = columns.iter().map(|(_, value)| right(value, Style::new()));
    let rows = [Row::new(heads), Row::new(values)];
    frame.render_widget(Table::new(rows, widths).column_spacing(1), area);
}

fn right(text: &str, style: Style) -> Cell<'static> {
    let line = Line::styled(text.to_owned(), style);
    Cell::from(line.right_aligned())
}

fn line_of_notifications(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let width = usize::from(area.width);
    let newest = view.notified.len().saturating_sub(width);
    let line: Vec<u64> = view.notified.iter().skip(newest).copied().collect();
    let most = line.iter().max().copied().unwrap_or_default();
    let [head, graph] = Layout::vertical([Length(1), Min(1)]).areas(area);
    let head_text = format!("notifications a second, at most {most}");
    frame.render_widget(Line::styled(head_text, QUIET), head);
    let graph_line = Sparkline::default()
        .data(&line)
        .style(Style::new().fg(Color::Cyan));
    frame.render_widget(graph_line, graph);
}

fn queues(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let widths = [
        Fill(1),
        Length(9),
        Length(9),
        Length(9),
        Length(6),
        Length(9),
    ];
    let heads = ["BACKLOG", "RATE", "LISTENERS", "BUSY", "IDLE"];
    let heads = heads.into_iter().map(|head| right(head, HEADER));
    let header = Row::new(std::iter::once(Cell::from(Span::styled("QUEUE", HEADER))).chain(heads));
    let rows = view.queues.iter().map(queue_row);
    frame.render_widget(
        Table::new(rows, widths).header(header).column_spacing(1),
        area,
    );
}

fn queue_row(row: &QueueRow) -> Row<'static> {
    let queue = &row.queue;
    let idle = queue
        .idle_for
        .map(|idle| Duration::from_secs(idle.as_secs()));
    let idle = idle.map_or_else(|| "-".to_owned(), |idle| duration::Span(idle).to_string());
    let doubt = if queue.in_doubt { "?" } else { "" };
    let cells = [
        format!("{}{doubt}", queue.backlog),
        format!("{:.1}", row.rate),
        queue.listeners.to_string(),
        queue.busy.to_string(),
        idle,
    ];
    let style = if queue.listeners == 0 && queue.backlog > 0 {
        Style::new().fg(Color::Red)
    } else {
        Style::new()
    };
    let cells = cells.iter().map(|cell| right(cell, Style::new()));
    Row::new(std::iter::once(Cell::from(row.name.clone())).chain(cells)).style(style)
}

fn listeners(frame: &mut Frame<'_>, area: Rect, view: &View) {
    // 18: `agent silent 1m30s`
    let widths = [Fill(1), Length(18), Length(9), Fill(1)];
    let heads = ["LISTENER", "STATE", "TASKS", "LISTENS TO"];
    let heads = heads.map(|head| Cell::from(Span::styled(head, HEADER)));
    let table = Table::new(view.listeners.iter().map(listener_row), widths);
    frame.render_widget(table.header(Row::new(heads)).column_spacing(1), area);
}

fn listener_row(of: &ListenerInfo) -> Row<'static> {
    let tasks = format!("{} of {}", of.active_dequeue_tasks, of.total_dequeue_tasks);
    let cells = [
        of.listener_id.clone(),
        state_for(of),
        tasks,
        listens_to(&of.selectors),
    ];
    let style = match of.lost_for.or(of.silent_for) {
        Some(_) => Style::new().fg(Color::Red),
        None => Style::new(),
    };
    Row::new(cells.map(Cell::from)).style(style)
}

fn latency(latency: &LatencyBuckets, percent: u8) -> String {
    let bound = latency.percentile(percent);
    bound.map_or_else(|| "-".to_owned(), |bound| duration::Span(bound).to_string())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ratatui::{Terminal, backend::TestBackend, crossterm::event::KeyCode};
    use reveille::{
        Finding, FindingKind, QueueInfo, RelayLevels, RelayStats, RelayTotals, Savings,
    };

    use super::*;

    fn stats(seconds: u64, notifications: u64, findings: Vec<Finding>) -> Stats {
        let totals = RelayTotals {
            notifications,
            ..RelayTotals::default()
        };
        let levels = RelayLevels {
            subscriptions: 3,
            asleep: 2,
            awake: 1,
            ..RelayLevels::default()
        };
        Stats {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            relays: vec![RelayStats {
                relay_id: "relay-1".to_owned(),
                epoch: "e".to_owned(),
                version: "1".to_owned(),
                uptime: Duration::from_secs(90),
                draining: false,
                degraded: false,
                totals: totals.clone(),
                levels: levels.clone(),
                savings: Savings::default(),
            }],
            unanswered: Vec::new(),
            totals,
            levels,
            savings: Savings::default(),
            findings,
        }
    }

    fn drawn(view: &View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal");
        terminal.draw(|frame| draw(frame, view)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let rows = buffer.content.chunks(80);
        let row = |cells: &[ratatui::buffer::Cell]| -> String {
            cells.iter().map(ratatui::buffer::Cell::symbol).collect()
        };
        rows.map(row).collect::<Vec<_>>().join("\n")
    }

    fn agent() -> ListenerInfo {
        ListenerInfo {
            listener_id: "agent-1".to_owned(),
            subscription_id: "s".to_owned(),
            selectors: vec!["acct/invoice".to_owned()],
            capacity: 6,
            visibility_timeout: Duration::from_secs(30),
            connected_for: Duration::from_secs(90),
            queues: 1,
            busy: 0,
            owed: 0,
            active_dequeue_tasks: 2,
            total_dequeue_tasks: 8,
            group: None,
            polling: false,
            silent_for: None,
            busy_for: None,
            lost_for: None,
            agent: true,
        }
    }

    #[test]
    fn eighty_columns_show_the_whole_verdict_the_rates_and_the_queues() {
        let text = "no listener subscribes to acct/invoice, which was notified once, last just now; \
                    start one, or check the name";
        let finding = Finding {
            kind: FindingKind::NoListener,
            urgent: true,
            text: text.to_owned(),
            queue: None,
            listener_id: None,
            relay_id: None,
        };
        let mut view = View::new(stats(1, 10, Vec::new()));
        assert!(drawn(&view).contains("nothing is wrong: 2 of 3 listeners asleep"));
        view.take(stats(3, 50, vec![finding]));
        let printed = super::text(&view);
        for words in ["relay-1, up 1m30s\n", text, "NOTIFIED"] {
            assert!(printed.contains(words), "no {words:?} in\n{printed}");
        }
        view.take_queues(vec![QueueInfo {
            storage_account: "acct".to_owned(),
            queue_name: "invoice".to_owned(),
            sequence: 1,
            notifications: 1,
            payload_size: 0,
            messages: 3,
            listeners: 0,
            timers: 0,
            idle_for: Some(Duration::from_millis(2_500)),
            current_queue_depth: None,
            depth_age: None,
            backlog: 3,
            in_doubt: true,
            busy: 0,
        }]);
        let screen = drawn(&view);
        for words in [
            "relay-1, up 1m30s",
            "start one, or check the name",
            "NOTIFIED",
            "20",
            "acct/invoice",
            "3?",
        ] {
            assert!(screen.contains(words), "no {words:?} in\n{screen}");
        }
        assert!((view.rates.notified - 20.0).abs() < 1e-9);
        view.obey(KeyCode::Char('l'));
        view.listeners = vec![agent()];
        let screen = drawn(&view);
        for words in ["agent-1", "agent ", "2 of 8", "acct/invoice", "l queues"] {
            assert!(screen.contains(words), "no {words:?} in\n{screen}");
        }
        view.lost = Some("the relay is away".to_owned());
        assert!(drawn(&view).contains("the figures are old: the relay is away"));
    }
}

//! All short histories of default routes: what is said of a moment is what was.

use super::*;

/// Steps of a history.
const STEPS: usize = 5;
/// The time of a step; entries are deleted in the middle of it, before the next one.
const STEP_NS: BootNs = 10;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// In place of the one of the same metric, which no message tells.
    Replace(usize),
    /// A better one than all others, if there is none yet.
    AddBetter(usize),
    DeleteBest,
    /// The messages are taken.
    Listen,
    /// The messages are lost.
    Lose,
    /// The messages are taken, then the routes are read.
    Read,
}

const ALL: [Step; 7] = [
    Step::Replace(0),
    Step::Replace(1),
    Step::AddBetter(2),
    Step::DeleteBest,
    Step::Listen,
    Step::Lose,
    Step::Read,
];

#[derive(Debug, Clone)]
enum Message {
    Added { route: RouteFacts, alone: bool },
    Deleted(RouteFacts),
}

#[derive(Clone)]
struct World {
    /// Of the kernel, the best one first.
    routes: Vec<RouteFacts>,
    /// Not taken yet.
    messages: Vec<Message>,
    /// When the socket was last empty.
    emptied: BootNs,
    now: BootNs,
    model: Namespaces,
    /// Deletions so far: when, and which gateway was in use.
    deletions: Vec<(BootNs, Option<IpAddr>)>,
    taken: usize,
    history: Vec<Step>,
}

impl World {
    fn tables(&self, gateways: &[IpAddr; 3]) -> NetnsSnapshot {
        let gateways = gateways.each_ref().map(ToString::to_string);
        with_entries(&self.routes, &gateways.each_ref().map(String::as_str))
    }

    fn put(&mut self, route: RouteFacts, replaces: bool) {
        let place = self.routes.iter().position(|known| known.metric == route.metric);
        match place {
            Some(place) if replaces && self.routes[place] != route => self.routes[place] = route.clone(),
            Some(_) => return,
            None => self.routes.push(route.clone()),
        }
        self.routes.sort_by_key(|route| route.metric);
        self.messages.push(Message::Added { route, alone: !replaces });
    }

    fn listen(&mut self) {
        for message in std::mem::take(&mut self.messages) {
            self.model.set_heard(7, self.emptied);
            match message {
                Message::Added { route, alone } => {
                    self.model.put_route(self.now, route);
                    if !alone {
                        self.model.set_stale(self.now, 7, false);
                    }
                }
                Message::Deleted(route) => {
                    self.model.remove_route(self.now, &route);
                    self.model.set_stale(self.now, 7, true);
                }
            }
        }
        self.emptied = self.now;
        self.taken = self.deletions.len();
    }

    fn take(&mut self, step: Step, gateways: &[IpAddr; 3]) {
        self.history.push(step);
        self.now += STEP_NS;
        let via = |metric, number: usize| RouteFacts { metric, ..route(&gateways[number].to_string()) };
        match step {
            Step::Replace(number) => self.put(via(2, number), true),
            Step::AddBetter(number) => self.put(via(1, number), false),
            Step::DeleteBest if self.routes.is_empty() => {}
            Step::DeleteBest => self.messages.push(Message::Deleted(self.routes.remove(0))),
            Step::Listen => self.listen(),
            Step::Lose => {
                self.messages.clear();
                self.model.set_all_stale(self.now, self.emptied);
                self.listen();
            }
            Step::Read => {
                self.listen();
                self.model.set_heard(7, self.now);
                self.model.replace(self.now, self.tables(gateways), true);
            }
        }
        let best = self.routes.first().and_then(|route| route.gateway);
        self.deletions.push((self.now + STEP_NS / 2, best));
    }

    fn check(&self, gateways: &[IpAddr; 3]) -> usize {
        let namespace = self.model.get(7).unwrap();
        let mut said = 0;
        for (at, used) in &self.deletions[..self.taken] {
            for gateway in gateways {
                let was = namespace.was_gateway(*at, 2, *gateway, true);
                let is_right = was.is_none_or(|was| was == (*used == Some(*gateway)));
                assert!(is_right, "{gateway} at {at}: {was:?} after {:?}", self.history);
                said += usize::from(was.is_some());
            }
        }
        said
    }

    /// Goes on in all ways; returns how often something was said.
    fn go_on(&self, gateways: &[IpAddr; 3]) -> usize {
        let said = self.check(gateways);
        if self.history.len() == STEPS {
            return said;
        }
        let ways = ALL.into_iter().map(|step| {
            let mut world = self.clone();
            world.take(step, gateways);
            world.go_on(gateways)
        });
        said + ways.sum::<usize>()
    }
}

#[test]
fn whatever_routes_came_and_went_nothing_false_is_said_of_a_moment() {
    for gateways in [["10.0.0.1", "10.0.0.2", "10.0.0.3"], ["fd00::1", "fd00::2", "fd00::3"]] {
        let gateways: [IpAddr; 3] = gateways.map(|address| address.parse().unwrap());
        let mut world = World {
            routes: vec![RouteFacts { metric: 2, ..route(&gateways[0].to_string()) }],
            messages: Vec::new(),
            emptied: 0,
            now: 0,
            model: Namespaces::default(),
            deletions: Vec::new(),
            taken: 0,
            history: Vec::new(),
        };
        world.model.replace(0, world.tables(&gateways), true);
        world.model.set_heard(7, 0);
        assert!(world.go_on(&gateways) > 0);
    }
}

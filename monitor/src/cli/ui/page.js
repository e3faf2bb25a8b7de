'use strict';
// Names come from hostile pods: data becomes text nodes and attributes of a fixed name, never markup.
const TOKEN = new URLSearchParams(location.search).get('token') ?? '';
const SEVERITIES = ['debug', 'info', 'notice', 'warning', 'critical'];
const LANES = [
  ['Incidents', ['incident']], ['CNI calls', ['cni']], ['Links, addresses', ['link', 'address', 'sysctl']],
  ['Routes, rules', ['route', 'rule']], ['Neighbors', ['neighbor']], ['Mounts', ['mount', 'rbd']],
  ['Processes', ['container', 'component']], ['Other', []],
];
const PERIOD = 5000; // Without an event that changes something, in ms.
const PAUSE = 1000; // Between two requests, and before the stream is asked for again.
const CONTEXT = 20; // Other events of the pod, those nearest in time.
const ROWS = 25; // Ways of pods that are drawn at first.
const LOG = 100; // Events that are listed.
const ENDED = '`kevtmon ui` has ended or cannot be reached; start it again and open the new address';

const $ = id => document.getElementById(id);

/** Characters that reorder text or do not show, as escapes. */
const clean = text => String(text).replace(/[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, c => `\\u{${c.codePointAt(0).toString(16)}}`);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === 'on') Object.entries(value).forEach(([type, listener]) => node.addEventListener(type, listener));
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : clean(value));
  }
  for (const child of children.flat(9)) {
    if (child !== undefined && child !== null && child !== false) node.append(child instanceof Node ? child : clean(child));
  }
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

/** Shows this in place of what a node has. What has the focus keeps it, by its key. */
function show(node, ...children) {
  const key = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.replaceChildren(...children);
  if (key) [...node.querySelectorAll('[data-key]')].find(other => other.dataset.key === key)?.focus();
}

const time = iso => Date.parse(iso.replace(/(\.\d{3})\d+/, '$1'));
const count = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`;
const span = ms => {
  const [seconds, minutes, hours] = [ms / 1e3, ms / 6e4, ms / 36e5];
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (minutes < 1) return `${Math.floor(seconds)} s`;
  if (hours < 1) return `${Math.floor(minutes)} min`;
  return hours < 48 ? `${Math.floor(hours)} h` : `${Math.floor(hours / 24)} d`;
};
function clock(ms, fine) {
  const date = new Date(ms), parts = { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' };
  if (fine) parts.fractionalSecondDigits = 3;
  const day = date.toDateString() === new Date().toDateString() ? '' : `${date.toLocaleDateString(undefined, { month: 'short', day: 'numeric' })} `;
  return day + date.toLocaleTimeString(undefined, parts);
}
/** How long ago, and kept so. */
const age = ms => h('span', { 'data-since': ms }, `${span(Date.now() - ms)} ago`);

const shortId = id => id.slice(0, 12);
const podName = pod => (pod.namespace && pod.name ? `${pod.namespace}/${pod.name}` : pod.uid) + (pod.claimed ? ' (claimed)' : '');
const process = (comm, pid) => `${comm} (pid ${pid})`;

/** What is to be said before a summary that is not known to be so now. */
function status(it) {
  const closed = { resolved: 'resolved', detached: 'detached, not resolved', 'subject-gone': 'closed (target removed)',
    'likely-gone': 'closed (target probably removed)', expired: 'expired (no further updates)' };
  if (it.closed) return `${closed[it.close_reason] ?? 'closed'}: `;
  return it.stale ? 'last known: ' : it.well_since ? 'intermittent, not active now: ' : '';
}

// The data, as it was asked for last. The address may name an incident, or a part of the page, which is shown alone then.
let incidents = [], report, state, selected = location.hash.slice(1), known, fault, isStreamed = false, shown = {};
if ($(selected)) selected = '';

const ending = new AbortController();
/** Asks no more, as any user of the node can listen on a port that is free again, and answer with commands of his own. */
function end() {
  if (!ending.signal.aborted) {
    ending.abort();
    isStreamed = false;
    document.querySelectorAll('.run button').forEach(button => { button.disabled = true; });
    $('connection').className = 'down';
    show($('connection'), `${ENDED}. What is shown is of ${clock(Date.now())}`);
  }
  throw new Error(ENDED);
}

/** Without an answer. While there is the stream, `kevtmon ui` runs, and has only given up on a request that took too long. */
function lost(error) {
  if (!isStreamed) end();
  throw error;
}

async function ask(path) {
  const answer = await fetch(path, { headers: { 'x-kevtmon-token': TOKEN }, cache: 'no-store', signal: ending.signal }).catch(lost);
  if (!answer.ok) throw new Error((await answer.text().catch(lost)).trim());
  return answer;
}

async function get(path) {
  const answer = await ask(path);
  return JSON.parse(await answer.text().catch(lost));
}

let isBusy = false, isWanted = false;
/** Asks for all that is shown, at most once in a pause. */
async function refresh() {
  if (ending.signal.aborted) return;
  if (isBusy) return void (isWanted = true);
  isBusy = true;
  isWanted = false;
  try {
    const [open, now, model] = await Promise.all([get('/v1/incidents'), get('/v1/doctor'), get('/v1/state')]);
    const all = open.incidents;
    if (selected && !all.some(it => it.id === selected)) {
      const closed = (await get(`/v1/incidents?all=1&id=${encodeURIComponent(selected)}`)).incidents;
      all.push(...closed.sort((a, b) => time(b.opened) - time(a.opened)).slice(0, 1));
    }
    [report, state] = [now, model];
    setIncidents(all);
    await showStory();
    showNetwork();
    setFault();
  } catch (error) {
    setFault(error.message);
  }
  setTimeout(() => { isBusy = false; if (isWanted) refresh(); }, PAUSE);
}

function setFault(reason) {
  if (ending.signal.aborted) return;
  const line = $('connection');
  if (reason !== undefined) {
    fault = { since: fault?.since ?? Date.now(), reason };
    if (line.className !== 'down' || line.dataset.reason !== reason) {
      line.className = 'down';
      line.dataset.reason = reason;
      show(line, `no answer since ${clock(fault.since)}: `, clean(reason), '; trying again. What is shown is older');
    }
  } else if (isStreamed && (fault || line.className !== 'good')) {
    const again = fault ? `live again since ${clock(Date.now())}, after ${span(Date.now() - fault.since)} without an answer` : 'live';
    fault = undefined;
    line.className = 'good';
    show(line, again);
  }
  const sources = (report?.sources ?? []).filter(it => it.up || !(it.absent || it.vacant));
  const down = sources.filter(it => !it.up);
  if (report) {
    document.title = `${incidents.filter(it => !it.closed).length || 'no'} incidents – ${clean(report.node)} – kevtmon`;
    show($('node'), h('span', {}, `node ${report.node}`));
    show($('sources'), h('span', { class: 'dim' }, `kevtmon ${report.version}${report.ready ? '' : ', not ready yet'}, `, count(sources.length - down.length, 'source'), ' up'),
      ...down.map(it => h('span', { class: 'critical' }, `, ${it.source}: ${it.reason ?? 'down'}`)));
  }
}

/** Events as they occur, and how the daemon is: the stream goes on over its restarts. */
async function follow() {
  while (!ending.signal.aborted) {
    try {
      const answer = await ask('/v1/follow');
      isStreamed = true;
      refresh();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ''; ;) {
        const { done, value } = await reader.read().catch(end);
        if (done) end();
        const lines = (rest + value).split('\n');
        rest = lines.pop();
        lines.filter(Boolean).map(line => JSON.parse(line)).forEach(take);
      }
    } catch (error) {
      isStreamed = false;
      setFault(error.message);
    }
    await new Promise(resolve => setTimeout(resolve, PAUSE));
  }
}

function take(event) {
  if (event.down !== undefined) return setFault(event.down);
  if (event.kind) {
    if (!take.some) $('log').replaceChildren();
    take.some = true;
    $('log').prepend(h('li', {}, h('time', { class: 'dim', datetime: event.time }, clock(time(event.time), true)), ' ',
      h('span', { class: event.severity }, event.kind), ' ', event.message));
    while ($('log').children.length > LOG) $('log').lastChild.remove();
  }
  refresh();
}

function setIncidents(all) {
  const rank = it => [it.closed ? 1 : 0, -SEVERITIES.indexOf(it.severity), -time(it.opened)];
  const byRank = (a, b) => rank(a).map((value, index) => value - rank(b)[index]).find(Boolean) ?? 0;
  incidents = all.sort(byRank);
  const open = incidents.filter(it => !it.closed);
  if (known) {
    const news = [...open.filter(it => !known.has(it.id)).map(it => `New incident: ${it.summary}`),
      ...[...known].filter(([id]) => !open.some(it => it.id === id)).map(([, summary]) => `Over: ${summary}`)];
    if (news.length) show($('news'), news.map(clean).join('. '));
  }
  known = new Map(open.map(it => [it.id, it.summary]));
  if (!incidents.some(it => it.id === selected)) selected = incidents[0]?.id ?? '';
  const buttons = incidents.map(it => h('li', {}, h('button', {
    type: 'button', class: it.severity, 'data-key': it.id, 'aria-current': it.id === selected && 'true', on: { click: () => select(it.id) },
  }, h('span', {}, status(it) + it.summary), h('small', {}, h('b', { class: it.severity }, it.severity), ` · ${it.kind} · `, age(time(it.opened))))));
  $('incidents-title').textContent = open.length ? `Open incidents (${open.length})` : 'No open incidents';
  show($('incidents'), ...buttons);
}

function select(id) {
  if (ending.signal.aborted) return;
  selected = id;
  history.replaceState(null, '', `#${encodeURIComponent(id)}`);
  setIncidents(incidents);
  shown.story = undefined;
  const it = incidents.find(it => it.id === id);
  show($('story'), h('h2', { class: 'sentence' }, status(it) + it.summary), h('p', { class: 'dim' }, 'asking the daemon …'));
  showStory().then(showNetwork).catch(error => setFault(error.message));
}

/** Shows a part anew only if what it shows has changed: focus, selection and place stay. */
function isNew(part, data) {
  const text = JSON.stringify(data);
  return shown[part] !== text && Boolean((shown[part] = text));
}

async function showStory() {
  const it = incidents.find(it => it.id === selected);
  if (!it) {
    if (isNew('story', null)) show($('story'), h('p', { class: 'dim' }, 'Nothing is wrong, as far as kevtmon sees.'));
    return;
  }
  const numbers = [...new Set([...(it.evidence ?? []), it.seq])].map(seq => `seq=${seq}`).join('&');
  const pod = it.target?.pod?.claimed ? undefined : it.target?.pod?.uid;
  const why = subject => get(`/v1/why?subject=${encodeURIComponent(subject)}`).then(outcome => outcome.story);
  const [story, page, ofPod] = await Promise.all([why(`incident:${it.id}`),
    get(`/v1/events?${numbers}&boot=${encodeURIComponent(it.boot_id)}&limit=64`), pod && why(`uid:${pod}`)]);
  // Another one may be selected by now.
  if (selected !== it.id || !isNew('story', [it, story, page.events, ofPod?.steps])) return;
  const repeated = it.count > 1 && ` · ${it.stale ? 'at least ' : ''}${it.count} ${it.counted}`;
  show($('story'),
    h('h2', { class: 'sentence' }, status(it) + it.summary),
    h('p', {}, h('b', { class: it.severity }, it.severity), ` · ${it.confidence === 'guess' ? 'a guess' : it.confidence} · ${it.kind} · `,
      it.closed ? `${clock(time(it.opened))} to ${clock(time(it.closed))}` : ['open since ', clock(time(it.opened)), ' (', age(time(it.opened)), ')'],
      repeated, h('span', { class: 'dim' }, ` · ${it.id}`)),
    ...(it.stale ? [h('p', { class: 'warning' }, `It is unknown whether it is still so: ${it.stale.reason}. ${it.stale.next ?? ''}`)] : []),
    ...causes(it, story), ...advice(it.advice ?? []), ...actor(it.actor), ...timeline(story, ofPod?.steps ?? []),
    ...holders(page.events), ...list('Ruled out', it.ruled_out ?? []),
    ...list('Could not be seen', (story?.unseen ?? []).map(unseen)));
}

function unseen(it) {
  const [from, to] = [it.from, it.to].map(at => at && clock(time(at)));
  const when = from ? (to ? `, ${from} to ${to}` : `, since ${from}`) : to ? `, until ${to}` : '';
  const least = it.exact ? '' : 'at least ';
  const words = { daemon: 'no daemon answers', gap: `the daemon did not watch${when}`, source: `${it.source}: ${it.reason}${when}`,
    lost: `${least}${count(it.count, 'record')} lost in ${it.source} (${it.reason})${when}`, actor: `${it.kind} (number ${it.seq}): actor unknown`,
    holders: `who else held ${it.path}`, older: `only the newest ${it.looked_at} events of it were read`, forgotten: to ? `no events before ${to} are kept` : 'no earlier events are kept' };
  return words[it.missing] ?? it.missing;
}

const list = (title, lines) => lines.length ? [h('h3', {}, title), h('ul', {}, lines.map(line => h('li', {}, line)))] : [];

function causes(it, story) {
  const of = story?.incidents.find(other => other.id === it.id)?.caused_by ?? [];
  return of.length ? [h('h3', {}, 'Caused by'), h('ul', {}, of.map(({ id, confidence }) => {
    const cause = story.incidents.find(other => other.id === id);
    return h('li', {}, cause ? status(cause) + cause.summary : `incident ${id}, which is no longer known`, confidence && ` (${confidence}) `,
      incidents.some(other => other.id === id) && h('button', { type: 'button', 'data-key': `cause-${id}`, on: { click: () => select(id) } }, 'Show'));
  }))] : [];
}

function advice(steps) {
  const risks = { read: 'read-only', restart: 'changes or restarts something', destructive: 'destructive' };
  const step = it => {
    const command = h('code', {}, it.command);
    const copy = async event => {
      const button = event.currentTarget;
      try {
        await navigator.clipboard.writeText(command.textContent);
        button.textContent = 'Copied';
      } catch {
        getSelection().selectAllChildren(command);
        button.textContent = 'Selected';
      }
    };
    return h('li', {}, h('p', {}, it.text, ' ', h('span', { class: it.risk === 'read' ? 'good' : it.risk === 'restart' ? 'warning' : 'critical' }, `(${risks[it.risk] ?? it.risk})`)),
      h('div', { class: 'run' }, command, h('button', { type: 'button', disabled: ending.signal.aborted, 'data-key': `copy-${it.command}`, 'aria-label': `Copy ${it.command}`, on: { click: copy } }, 'Copy')));
  };
  return steps.length ? [h('h3', {}, 'What to do'), h('ol', { class: 'advice' }, steps.map(step))] : [];
}

function actor(it) {
  if (!it) return [];
  const above = (it.ancestors ?? []).map(other => process(other.comm, other.pid));
  const place = it.pod ? `pod ${podName(it.pod)}` : it.container ? `container ${it.container.name ?? shortId(it.container.id)}` : it.unit;
  return [h('h3', {}, 'Actor'), h('p', {}, h('b', {}, process(it.comm ?? 'a process', it.pid)), place && ` of ${place}`, ` · ${it.confidence}`,
    it.cmdline && [h('br'), h('code', {}, it.cmdline)], above.length > 0 && [h('br'), h('span', { class: 'dim' }, `its ancestors: ${above.join(', ')}`)])];
}

/** Steps and incidents of a story, and what else happened to its pod, in the order of time; each with its place on the axis. */
function moments(story, others) {
  const isOf = id => story.incidents.some(it => it.id === id), begin = Math.min(...story.incidents.map(it => time(it.opened)));
  const near = others.filter(step => !story.steps.some(own => own.seq === step.seq)).sort((a, b) => Math.abs(time(a.time) - begin) - Math.abs(time(b.time) - begin));
  const events = [...story.steps, ...near.slice(0, CONTEXT)].filter(step => !step.kind.startsWith('incident.'))
    .map(step => ({ ...step, at: time(step.time), is: step.evidence_of?.some(isOf) ? 'evidence' : 'context' }));
  const opened = story.incidents.map(it => ({ ...it, at: time(it.opened), is: 'incident', message: `${it.kind} opened: ${status(it)}${it.summary}` }));
  const all = [...events, ...opened].sort((a, b) => a.at - b.at || (a.is === 'incident') - (b.is === 'incident') || a.seq - b.seq);
  let x = 0, before, taken = new Set();
  for (const [index, it] of all.entries()) {
    const family = it.is === 'incident' ? 'incident' : it.kind.split('.')[0];
    const lane = LANES.findIndex(([, families]) => families.includes(family));
    it.lane = lane < 0 ? LANES.length - 1 : lane;
    it.number = index + 1;
    const gap = before === undefined ? 0 : it.at - before;
    if (gap >= 1 || taken.has(it.lane)) {
      x += 30 + 14 * Math.log10(1 + gap);
      taken = new Set();
    }
    taken.add(it.lane);
    [it.x, it.gap, before] = [x, gap, it.at];
  }
  return all;
}

function timeline(story, others) {
  if (!story?.incidents.length) return [];
  const all = moments(story, others), lanes = LANES.filter(([, families], lane) => families.length || all.some(it => it.lane === lane)), left = 140, high = 34, top = 16;
  const y = it => top + it.lane * high + high / 2, x = it => left + it.x;
  const width = left + all.at(-1).x + 90, bottom = top + lanes.length * high;
  const arrow = (from, to, kind, isSure) => {
    const [x1, y1, x2, y2] = [x(from), y(from), x(to), y(to)], reach = 13, length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const [dx, dy] = [(x2 - x1) / length * reach, (y2 - y1) / length * reach];
    const bend = from.lane === to.lane ? `Q ${(x1 + x2) / 2} ${y1 - 26} ${x2 - dx} ${y2 - 8}` : `L ${x2 - dx} ${y2 - dy}`;
    return s('path', { class: `arrow ${kind}${isSure ? '' : ' unsure'}`, d: `M ${x1 + dx} ${y1 + (from.lane === to.lane ? -8 : dy)} ${bend}`, 'marker-end': `url(#head-${kind})` });
  };
  const of = id => all.find(it => it.is === 'incident' && it.id === id);
  const arrows = all.flatMap(it => it.is === 'incident'
    ? (it.caused_by ?? []).filter(cause => of(cause.id)).map(cause => arrow(of(cause.id), it, 'cause', cause.confidence === 'certain'))
    : (it.evidence_of ?? []).filter(of).map(id => arrow(it, of(id), 'evidence', true)));
  const items = all.map(it => h('li', { id: `step-${it.number}`, on: { pointerenter: () => mark(it.number), pointerleave: () => mark() } },
    h('time', { class: 'dim', datetime: it.time ?? it.opened }, clock(it.at, true)), ' ', it.is !== 'incident' && [h('span', { class: it.severity }, it.kind), ' '],
    it.is === 'incident' ? h('b', { class: it.severity }, it.message) : it.message, it.is === 'evidence' && h('span', { class: 'dim' }, ' (evidence)'),
    it.repeated?.until && h('span', { class: 'dim' }, ` and ${it.repeated.count} more until ${clock(time(it.repeated.until), true)}`)));
  const dots = all.map(it => s('g', { class: `dot ${it.is} ${it.severity}`, 'data-number': it.number, on: { click: () => { mark(it.number); items[it.number - 1].scrollIntoView({ block: 'nearest' }); } } },
    it.is === 'incident' ? s('rect', { class: 'mark', x: x(it) - 10, y: y(it) - 10, width: 20, height: 20, rx: 3 }) : s('circle', { class: 'mark', cx: x(it), cy: y(it), r: 10 }),
    s('text', { x: x(it), y: y(it) + 4 }, it.number), s('title', {}, `${clock(it.at, true)} ${it.message}`)));
  function mark(number) {
    dots.forEach((dot, index) => dot.classList.toggle('marked', index + 1 === number));
    items.forEach((item, index) => item.classList.toggle('marked', index + 1 === number));
  }
  let free = 0;
  const ticks = all.filter(it => x(it) >= free && (free = x(it) + 84)).map(it => s('text', { class: 'small', x: x(it), y: bottom + 16, 'text-anchor': 'middle' }, clock(it.at, true)));
  const gaps = all.filter(it => it.gap >= 1000).map(it => s('text', { class: 'small', x: x(it) - 14, y: bottom + 32, 'text-anchor': 'end' }, `+${span(it.gap)} →`));
  const head = kind => s('marker', { id: `head-${kind}`, class: kind, viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: 'userSpaceOnUse', orient: 'auto' }, s('path', { d: 'M 0 0 L 8 4 L 0 8 z' }));
  const picture = s('svg', { width, height: bottom + 40, role: 'img', 'aria-label': `Timeline of ${count(all.length, 'moment')}; the list below has the same` },
    s('defs', {}, head('cause'), head('evidence')),
    lanes.map(([name], lane) => [s('text', { class: all.some(it => it.lane === lane) ? 'label' : 'small', x: 0, y: top + lane * high + high / 2 + 4 }, name),
      s('line', { class: 'lane', x1: left - 20, x2: width, y1: top + lane * high + high / 2, y2: top + lane * high + high / 2 })]),
    arrows, dots, ticks, gaps);
  return [h('h3', {}, 'Cause to effect'),
    h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Timeline', 'data-key': 'timeline' }, picture),
    h('p', { class: 'dim' }, 'Squares are incidents, filled dots their evidence, other dots what happened besides. Thin arrows lead from evidence to incident, thick ones from cause to effect; dashed where that is not certain. Pauses are drawn shorter than they were.'),
    h('ol', { class: 'steps' }, items), story.steps_omitted > 0 && h('p', { class: 'dim' }, `${story.steps_omitted} more are left out.`)].filter(Boolean);
}

const ACCESS = { fd: 'an open file', cwd: 'its current directory', root: 'its root directory', exe: 'its executable', mmap: 'a mapped file', socket: 'a socket',
  mount: 'a copy of the mount in its mount namespace, which refuses no unmount', 'child-mount': 'a mount below it', netns: 'it is in the network namespace',
  loop: 'loop device', swap: 'swap file', export: 'NFS export', 'in-flight': 'a file in a socket', 'io-uring': 'a file of an io_uring', call: 'a pending system call',
  'perf-event': 'a perf event, possibly a probe in a file', uprobe: 'a uprobe', nfs: 'NFS mount' };

/** Who holds a mount, as the newest of these events tells: pod, container, process. */
function holders(events) {
  const event = events.filter(event => event.holders?.length).sort((a, b) => a.seq - b.seq).at(-1);
  if (!event) return [];
  const tree = new Map();
  const below = (map, key) => map.get(key) ?? map.set(key, new Map()).get(key);
  for (const it of event.holders) {
    const pod = it.pod ? `pod ${podName(it.pod)}` : it.pid ? 'no pod' : 'no process';
    const container = it.container ? `container ${it.container.name ?? shortId(it.container.id)}` : it.unit ?? (it.pid ? 'the host' : 'the kernel');
    const who = it.pid ? process(it.comm, it.pid) + (it.uid ? `, uid ${it.uid}` : '') : ACCESS[it.access] ?? it.access;
    const how = [it.possible && 'possibly ', it.pid ? ACCESS[it.access] ?? it.access : 'holds it', it.fd !== undefined && ` (descriptor ${it.fd})`, it.path && [': ', h('code', {}, it.path)], it.source && ` of ${it.source}`];
    below(below(below(tree, pod), container), who).set(it, how);
  }
  const branch = map => h('ul', { class: 'tree' }, [...map].map(([key, value]) => value instanceof Map ? h('li', {}, key, branch(value)) : h('li', {}, value)));
  const what = event.mount?.path ?? event.mount?.source ?? event.link?.ifname ?? event.rbd?.device ?? 'it';
  return [h('h3', {}, 'What holds ', h('code', {}, what)), branch(tree),
    h('p', { class: 'dim' }, `As seen at ${clock(time(event.time))}.`, event.holders_complete === false && ' Not everything could be looked at, so that there may be more.')];
}

/** The ways of pods as rows; what each row has in each column, from the pod to the uplink. */
function ways() {
  const wanted = $('filter').value.trim().toLowerCase(), about = incidents.find(it => it.id === selected)?.target?.pod?.uid;
  const rows = (state?.pods ?? []).flatMap(pod => {
    const chains = [];
    for (const hop of pod.path ?? []) {
      if (hop.netns === pod.netns && !hop.gateway) chains.push([]);
      (chains.at(-1) ?? chains[chains.push([]) - 1]).push(hop);
    }
    return (chains.length ? chains : [[]]).map(hops => ({ pod, hops, isBroken: hops.some(hop => hop.broken?.length), isSelected: pod.uid === about,
      isRouted: hops.length > 0 && (hops.every(hop => !hop.unrouted) || hops.some(hop => hop.netns === state.host_netns && !hop.unrouted)) }));
  }).filter(row => JSON.stringify([podName(row.pod), row.pod.ip, row.hops]).toLowerCase().includes(wanted));
  return rows.sort((a, b) => b.isSelected - a.isSelected || b.isBroken - a.isBroken);
}

function showNetwork(isAll = shown.isAll) {
  shown.isAll = isAll;
  const all = ways();
  if (!isNew('network', [all.map(row => [row, row.isSelected]), state?.uplinks, isAll])) return;
  const rows = isAll ? all : all.slice(0, ROWS);
  show($('shown'), `${count(new Set(all.map(row => row.pod.uid)).size, 'pod')}${rows.length < all.length ? `, the first ${rows.length} ways are shown` : ''}`);
  $('all').hidden = rows.length === all.length;
  show($('network'), network(rows));
  const words = hop => [hop.broken?.length > 0 && h('b', { class: 'critical' }, `broken: ${hop.broken.join(', ')} `), (hop.facts ?? []).join(', ')];
  const name = hop => (hop.gateway && hop.netns !== state.host_netns ? `via ${hop.gateway}` : hop.gateway ? `${hop.ifname} via ${hop.gateway}` : hop.ifname || '-');
  const line = hop => h('li', {}, h('code', {}, name(hop)), ' ', words(hop));
  show($('paths'), ...rows.map(row => h('li', {}, `pod ${podName(row.pod)}`, row.pod.netns === undefined && ': its network is not known', h('ul', {}, row.hops.map(line)))),
    h('li', {}, 'uplinks of the node', h('ul', {}, (state?.uplinks ?? []).map(line))));
}

function network(rows) {
  const [wide, tall, across, down] = [192, 68, 34, 14], boxes = new Map(), edges = new Map();
  const host = state?.host_netns, names = ['Pod', 'In the pod', 'Gateway', 'On the node', 'Bridge', 'Uplink'];
  const box = (key, column, row, title, lines, classes) => {
    const it = boxes.get(key) ?? boxes.set(key, { key, column, rows: [], title, lines, classes }).get(key);
    it.rows.push(row);
    return it;
  };
  // What is broken for one pod is not for all.
  const edge = (from, to, kind) => {
    const key = `${from.key}>${to.key}`;
    if (!edges.get(key) || kind === '') edges.set(key, { from, to, kind });
  };
  const of = hop => [...(hop.broken ?? []).map(it => `✕ ${it}`), ...(hop.facts ?? [])];
  const uplinks = new Map();
  for (const hop of state?.uplinks ?? []) uplinks.set(hop.ifname, [...(uplinks.get(hop.ifname) ?? []), hop]);
  const last = Math.max(rows.length - 1, 0) / 2;
  const up = [...uplinks].map(([name, hops], index) => box(`up ${name}`, 5, last + index - (uplinks.size - 1) / 2, name || 'no uplink',
    [...hops.filter(hop => hop.gateway).map(hop => `via ${hop.gateway}`), ...of(hops[0])], hops.some(hop => hop.broken?.length) ? 'broken' : ''));
  rows.forEach((row, index) => {
    const known = [...(row.pod.ip ?? []), ...(row.hops.length ? [] : ['its network is not known'])];
    let before = box(`pod ${row.pod.uid}`, 0, index, podName(row.pod), known, row.isSelected ? 'selected' : ''), isCut = false, hosts = 0;
    for (const [at, hop] of row.hops.entries()) {
      const isInside = hop.netns === row.pod.netns, column = isInside ? (hop.gateway ? 2 : 1) : Math.min(3 + hosts++, 4);
      const isShared = !isInside && hop.ifname;
      const next = box(isShared ? `${hop.netns} ${hop.ifname}` : `${row.pod.uid} ${index} ${at}`, column, index,
        hop.gateway ? `via ${hop.gateway}` : hop.ifname || 'unknown', of(hop), hop.broken?.length ? 'broken' : '');
      isCut ||= Boolean(hop.broken?.length);
      edge(before, next, isCut ? 'cut' : hop.unrouted ? 'unknown' : '');
      before = next;
    }
    if (row.isRouted) up.forEach(next => edge(before, next, next.classes || isCut ? 'cut' : ''));
  });
  const used = names.map((_, column) => [...boxes.values()].some(it => it.column === column));
  const left = column => used.slice(0, column).filter(Boolean).length * (wide + across) + 2;
  // What several pods share is between them, but in sight, and not on another box of its column.
  const ends = names.map(() => 24);
  for (const it of [...boxes.values()].sort((a, b) => mean(a) - mean(b))) {
    it.y = Math.max(24 + Math.min(mean(it), it.column < 4 ? rows.length : 3) * (tall + down), ends[it.column]);
    ends[it.column] = it.y + tall + down;
  }
  const width = left(names.length) - across + 2, height = Math.max(...ends, 60);
  const fit = (text, length) => (clean(text).length > length ? `${clean(text).slice(0, length - 1)}…` : text);
  const wrap = text => clean(text).match(/.{1,27}(?:\s|$)|\S{1,28}/g) ?? [];
  const draw = it => s('g', { class: `box ${it.classes}` }, s('rect', { x: left(it.column), y: it.y, width: wide, height: tall, rx: 6 }),
    [fit(it.title, 22), ...it.lines.flatMap(wrap)].slice(0, 4).map((text, line) => s('text', { class: line ? '' : 'label', x: left(it.column) + 8, y: it.y + 16 + line * 15 }, fit(text, 28))),
    s('title', {}, [it.title, ...it.lines].join('\n')));
  const line = ({ from, to, kind }) => {
    const [x1, y1, x2, y2] = [left(from.column) + wide, from.y + tall / 2, left(to.column), to.y + tall / 2];
    return s('path', { class: `edge ${kind}`, d: `M ${x1} ${y1} C ${x1 + across} ${y1} ${x2 - across} ${y2} ${x2} ${y2}` });
  };
  return s('svg', { width, height, role: 'img', 'aria-label': `${count(rows.length, 'way')} of pods to the uplink, ${rows.filter(row => row.isBroken).length} broken; the list below has the same` },
    names.map((name, column) => used[column] && s('text', { class: 'small', x: left(column), y: 14 }, name)), [...edges.values()].map(line), [...boxes.values()].map(draw));
}
const mean = it => it.rows.reduce((sum, row) => sum + row, 0) / it.rows.length;

$('filter').addEventListener('input', () => showNetwork());
$('all').addEventListener('click', () => showNetwork(true));
$('incidents').addEventListener('keydown', event => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], buttons = [...$('incidents').querySelectorAll('button')];
  const next = step && buttons[buttons.indexOf(document.activeElement) + step];
  if (next) {
    event.preventDefault();
    next.focus();
  }
});
setInterval(() => document.querySelectorAll('[data-since]').forEach(it => {
  const text = `${span(Date.now() - it.dataset.since)} ago`;
  if (it.textContent !== text) it.textContent = text;
}), 1000);
setInterval(refresh, PERIOD);
follow();

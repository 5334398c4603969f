// Reads a PromQL expression as far as lint rules need it: each selector, its matchers, its range and the call around
// it. A scanner and no parser: whether the expression is valid is asked of Prometheus itself
// (test/integration/dashboards).

export type Matcher = { readonly label: string; readonly operator: string; readonly value: string };

export type Selector = {
  readonly metric: string;
  readonly matchers: readonly Matcher[];
  /** What stands between the brackets, with Grafana's variables as they are. */
  readonly range: string | undefined;
  /** The function whose argument this selector is, not one further out. */
  readonly call: string | undefined;
};

export type Reading = {
  readonly selectors: readonly Selector[];
  /** Labels named by `by`, `without`, `on`, `ignoring`, `group_left`, `group_right`. */
  readonly groupings: readonly string[];
};

const TOKEN =
  /\s+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\$\{?\w+\}?|[a-zA-Z_:][\w:]*|\d[\w.]*|\.\d+|[=!]~|[=!<>]=|[-+*/%^<>=(){}[\],@:]/y;
const GROUPING = ['by', 'without', 'on', 'ignoring', 'group_left', 'group_right'];
const KEYWORDS = [...GROUPING, 'and', 'or', 'unless', 'bool', 'offset', 'atan2', 'start', 'end'];
const OPENERS: Readonly<Record<string, string>> = { '(': ')', '{': '}', '[': ']' };

/** Throws where the text cannot be cut into tokens or its brackets do not pair. */
export function readPromql(text: string): Reading {
  const tokens = tokenize(text);
  checkPairs(tokens, text);
  const selectors: Selector[] = [];
  const groupings: string[] = [];
  const calls: (string | undefined)[] = [];
  for (let at = 0; at < tokens.length; at += 1) {
    const token = tokens[at] ?? '';
    if (token === '(') calls.push(undefined);
    else if (token === ')') calls.pop();
    // A subquery's times.
    else if (token === '[') at = tokens.indexOf(']', at);
    else if (GROUPING.includes(token)) {
      const end = tokens.indexOf(')', at);
      if (tokens[at + 1] !== '(') continue;
      groupings.push(...tokens.slice(at + 2, end).filter((each) => each !== ','));
      at = end;
    } else if (/^[a-zA-Z_:]/.test(token) && !KEYWORDS.includes(token)) {
      const next = tokens[at + 1];
      if (next === '(') {
        calls.push(token);
        at += 1;
      } else if (!GROUPING.includes(next ?? '')) {
        const inner = tokens[at - 1] === '(' || tokens[at - 1] === ',';
        at = readSelector(tokens, at, inner ? calls.at(-1) : undefined, selectors);
      }
    } else if (token === '{') {
      throw new Error(`a selector without a name: ${text}`);
    }
  }
  return { selectors, groupings };
}

/** Adds the selector that begins at `at`; returns the index of its last token. */
function readSelector(tokens: readonly string[], at: number, call: string | undefined, into: Selector[]): number {
  const metric = tokens[at] ?? '';
  const matchers: Matcher[] = [];
  let last = at;
  if (tokens[last + 1] === '{') {
    const end = tokens.indexOf('}', last);
    for (let index = last + 2; index < end; index += 4) {
      const [label = '', operator = '', value = ''] = tokens.slice(index, index + 3);
      matchers.push({ label, operator, value: value.slice(1, -1) });
    }
    last = end;
  }
  let range: string | undefined;
  if (tokens[last + 1] === '[') {
    const end = tokens.indexOf(']', last);
    range = tokens.slice(last + 2, end).join('');
    last = end;
  }
  into.push({ metric, matchers, range, call });
  return last;
}

function tokenize(text: string): readonly string[] {
  const tokens: string[] = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const start = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (match === null) throw new Error(`not PromQL at ${start}: ${text}`);
    if (match[0].trim() !== '') tokens.push(match[0]);
  }
  return tokens;
}

function checkPairs(tokens: readonly string[], text: string): void {
  const open: string[] = [];
  for (const token of tokens) {
    const closer = OPENERS[token];
    if (closer !== undefined) open.push(closer);
    else if ([')', '}', ']'].includes(token) && open.pop() !== token) throw new Error(`brackets do not pair: ${text}`);
  }
  if (open.length > 0) throw new Error(`brackets do not pair: ${text}`);
}

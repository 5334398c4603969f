// The questions of docs/operate/boards.md: every dashboard and panel on a path exists, and every click follows a link
// that is there.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { field, listAt, textAt } from '../../../src/common/json.ts';

const root = join(import.meta.dirname, '../../..');
const OUTPUT = join(root, 'dashboards/output');
const MOST_CLICKS = 3;

type Board = { readonly uid: string; readonly panels: ReadonlyMap<string, string>; readonly top: string };

/** By the title's last part: links of a panel, and of the dashboard's top, as text. */
const boards = new Map<string, Board>(
  readdirSync(OUTPUT)
    .filter((name) => name.endsWith('.json'))
    .map((name) => {
      const board: unknown = JSON.parse(readFileSync(join(OUTPUT, name), 'utf8'));
      const panels = listAt(board, 'panels').flatMap((panel) => [panel, ...listAt(panel, 'panels')]);
      const titled = panels.map((panel) => [textAt(panel, 'title') ?? '', linksOf(panel)] as const);
      const title = textAt(board, 'title')?.split(' / ')[1] ?? '';
      const top = JSON.stringify(field(board, 'links'));
      return [title, { uid: textAt(board, 'uid') ?? '', panels: new Map(titled), top }] as const;
    }),
);

function linksOf(panel: unknown): string {
  const { panels: _, ...own } = panel as Record<string, unknown>;
  return JSON.stringify(own);
}

const leadsTo = (links: string, { uid }: Board): boolean => new RegExp(`/d/${uid}[?"/]`).test(links);

const rows = readFileSync(join(root, 'docs/operate/boards.md'), 'utf8')
  .split('\n')
  .filter((line) => line.startsWith('| ') && line.includes('**'))
  .map((line) => line.split(' | '))
  .map(([question = '', path = '']) => ({ question: question.slice(2), path }));

test('ten questions are answered', (t) => {
  t.is(rows.length, 10);
});

for (const { question, path } of rows) {
  test(`a path of links: ${question.slice(0, 60)}`, (t) => {
    const steps = path.split(/ (?=[→⇢] )/).map((text) => ({
      click: text[0],
      title: /\*\*(.+?)\*\*/.exec(text)?.[1] ?? '',
      panels: [...text.replace(/\*\*.+?\*\*/, '').matchAll(/\*(.+?)\*/g)].map((match) => match[1] ?? ''),
    }));
    t.true(steps.length - 1 <= MOST_CLICKS);
    let before: (typeof steps)[number] | undefined;
    for (const step of steps) {
      const board = boards.get(step.title);
      if (!board) return t.fail(`no dashboard is named ${step.title}`);
      for (const panel of step.panels) t.true(board.panels.has(panel), `${step.title}: no panel ${panel}`);
      const from = before && boards.get(before.title);
      if (from && before) {
        const links = step.click === '→' ? from.panels.get(before.panels[0] ?? '') : from.top;
        t.true(leadsTo(links ?? '', board), `${before.title} ${step.click} ${step.title}`);
      }
      before = step;
    }
  });
}

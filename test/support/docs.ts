// Reads the documentation as data: tables, code blocks, headings and links. Supports the Markdown that these pages use;
// the checks themselves are in test/unit/docs.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export const ROOT = join(import.meta.dirname, '../..');

export type Row = Readonly<Record<string, string>>;

/** A page by its path from the root of the repository. */
export const readPage = (path: string): string => readFileSync(join(ROOT, path), 'utf8');

/** The text below a heading, up to the next heading of its level or a higher one. */
export function section(text: string, heading: string): string {
  const [marks = ''] = heading.split(' ');
  const start = text.indexOf(`\n${heading}\n`);
  if (start < 0) throw new Error(`no heading "${heading}"`);
  const body = text.slice(start + heading.length + 2);
  const end = body.search(new RegExp(`^#{1,${marks.length}} `, 'm'));
  return end < 0 ? body : body.slice(0, end);
}

/** All tables of a text; each row is keyed by the column names. */
export function tables(text: string): readonly (readonly Row[])[] {
  const found: Row[][] = [];
  let head: readonly string[] | undefined;
  for (const line of text.split('\n')) {
    if (!line.startsWith('|')) {
      head = undefined;
      continue;
    }
    const cells = line
      .slice(1, line.lastIndexOf('|'))
      .split('|')
      .map((cell) => cell.trim());
    if (!head) {
      head = cells;
      found.push([]);
    } else if (!cells.every((cell) => /^-+$/.test(cell))) {
      const names = head;
      found.at(-1)?.push(Object.fromEntries(cells.map((cell, index) => [names[index] ?? '', cell])));
    }
  }
  return found;
}

/** Rows of all tables that have these columns. */
export const rowsWith = (text: string, ...columns: readonly string[]): readonly Row[] =>
  tables(text)
    .filter(([first]) => first !== undefined && columns.every((column) => column in first))
    .flat();

/** The texts between backquotes in a cell, in order. */
export const quoted = (cell = ''): readonly string[] => [...cell.matchAll(/`([^`]+)`/g)].map(([, text]) => text ?? '');

/** Code blocks in a language; '' for those without one. */
export const blocks = (text: string, language: string): readonly string[] =>
  [...text.matchAll(/^```(\w*)\n([\s\S]*?)^```/gm)]
    .filter(([, name]) => name === language)
    .map(([, , body]) => body ?? '');

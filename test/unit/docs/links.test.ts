// Links between the pages lead somewhere.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import test from 'ava';
import { ROOT, readPage } from '../../support/docs.ts';

const PAGES = [
  ...readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => `docs/${name}`),
  'charts/cotenant/README.md',
  'examples/README.md',
  'CHANGELOG.md',
  'CONTRIBUTING.md',
  'README.md',
  'SECURITY.md',
];

/** Text outside of blocks of code and code in lines. */
const prose = (text: string): string => text.replace(/^```[\s\S]*?^```/gm, '').replace(/`[^`\n]*`/g, 'code');

/** What a heading is called in an address, as GitHub makes it. */
const anchor = (heading: string): string =>
  heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-');

const anchorsOf = (path: string): readonly string[] =>
  [
    ...readPage(path)
      .replace(/^```[\s\S]*?^```/gm, '')
      .matchAll(/^#{1,6} (.+)$/gm),
  ].map(([, heading = '']) => anchor(heading));

test('every relative link points at a file that exists, and at a heading in it', (t) => {
  let links = 0;
  for (const path of PAGES) {
    for (const [, target = ''] of prose(readPage(path)).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      links += 1;
      const [file = '', heading] = target.split('#');
      const to = file === '' ? path : relative(ROOT, join(ROOT, dirname(path), file));
      t.false(to.startsWith('..'), `${path}: ${target} leaves the repository`);
      const there = existsSync(join(ROOT, to));
      t.true(there, `${path}: ${target} is not there`);
      if (!there || heading === undefined) continue;
      t.true(statSync(join(ROOT, to)).isFile() && anchorsOf(to).includes(heading), `${path}: no heading for ${target}`);
    }
  }
  t.true(links > 50, String(links));
});

test('every page of docs/ is linked from another page', (t) => {
  for (const page of PAGES.filter((path) => path.startsWith('docs/'))) {
    const linked = PAGES.some(
      (other) => other !== page && readPage(other).includes(`](${relative(dirname(other), page)}`),
    );
    t.true(linked, `no page links to ${page}`);
  }
});

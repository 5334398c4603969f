// The page on formats against the headers, as the compiler lays them out: every field of every structure, and the
// constants.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { quoted, ROOT, readPage, rowsWith, section } from '../../support/docs.ts';

const page = readPage('docs/reference/formats.md');
const STRUCTURES: readonly (readonly [heading: string, structure: string])[] = [
  ['### `struct cot_limits_page_header`', 'cot_limits_page_header'],
  ['### `struct cot_limits_page_gpu`', 'cot_limits_page_gpu'],
  ['### Feedback', 'cot_limits_page_feedback'],
  ['### `struct cot_ledger_header`', 'cot_ledger_header'],
  ['### `struct cot_ledger_total`', 'cot_ledger_total'],
  ['### `struct cot_slot`', 'cot_slot'],
  ['### `struct cot_slot_gpu`', 'cot_slot_gpu'],
  ['### `struct cot_lease_page_header`', 'cot_lease_page_header'],
  ['### `struct cot_lease_order`', 'cot_lease_order'],
  ['### `struct cot_lease_record`', 'cot_lease_record'],
  ['### `struct cot_lease_shared`', 'cot_lease_shared'],
  ['### `struct cot_lease_reports`', 'cot_lease_reports'],
  ['### `struct cot_lease_row`', 'cot_lease_row'],
];

type Field = { readonly name: string; readonly offset: number; readonly size: number };

const fieldsOf = (heading: string): readonly Field[] =>
  rowsWith(section(page, heading), 'offset', 'size', 'field').map((row) => ({
    name: quoted(row.field)[0] ?? '',
    offset: Number(row.offset),
    size: Number(row.size),
  }));

/** What the compiler says to each expression of type unsigned long. */
function evaluate(t: ExecutionContext, expressions: readonly string[]): readonly bigint[] {
  const folder = mkdtempSync(join(tmpdir(), 'ct-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const prints = expressions.map((text) => `printf("%lu\\n", (unsigned long)(${text}));`).join('\n');
  const program = `#include <stddef.h>\n#include <stdio.h>\n#include "ledger.h"\n#include "lease_page.h"\nint main(void) {\n${prints}\nreturn 0;\n}\n`;
  writeFileSync(join(folder, 'layout.c'), program);
  const out = join(folder, 'layout');
  execFileSync('gcc', [
    '-std=c17',
    '-Werror',
    '-I',
    join(ROOT, 'native/shared-memory'),
    join(folder, 'layout.c'),
    '-o',
    out,
  ]);
  return execFileSync(out, { encoding: 'utf8' }).trim().split('\n').map(BigInt);
}

for (const [heading, structure] of STRUCTURES) {
  test(`the table of struct ${structure} is its layout, without a gap`, (t) => {
    const fields = fieldsOf(heading);
    t.true(fields.length > 1);
    const asked = fields.flatMap(({ name }) => [
      `offsetof(struct ${structure}, ${name})`,
      `sizeof(((struct ${structure} *)0)->${name})`,
    ]);
    const answers = evaluate(t, [...asked, `sizeof(struct ${structure})`]).map(Number);
    t.deepEqual(
      fields.flatMap(({ offset, size }) => [offset, size]),
      answers.slice(0, -1),
    );
    let end = 0;
    for (const { name, offset, size } of fields) {
      t.is(offset, end, `before ${name}`);
      end += size;
    }
    t.is(end, Number(answers.at(-1)), 'a field at the end is missing');
  });
}

test('the page has every structure of the headers', (t) => {
  const named = ['limits_page.h', 'ledger.h', 'lease_page.h'].flatMap((name) =>
    [...readPage(`native/shared-memory/${name}`).matchAll(/^struct (\w+) \{/gm)].map(
      ([, structure]) => structure ?? '',
    ),
  );
  // The page as a whole is not a table but a place of each part.
  // Two are the code's own way of handing terms on.
  const others = ['cot_limits_page', 'cot_lease_terms', 'cot_lease_order_view'];
  t.deepEqual([...STRUCTURES.map(([, structure]) => structure), ...others].sort(), named.sort());
});

test('the constants of the page are those of the headers', (t) => {
  const rows: readonly { readonly constant?: string | undefined; readonly value?: string | undefined }[] = [
    ...rowsWith(page, 'constant', 'value'),
    ...rowsWith(page, 'constant of the lease page', 'value').map((row) => ({
      constant: row['constant of the lease page'],
      value: row.value,
    })),
  ];
  const documented = rows.map((row) => BigInt(quoted(row.value)[0] ?? row.value ?? ''));
  t.deepEqual(documented, [
    ...evaluate(
      t,
      rows.map((row) => quoted(row.constant)[0] ?? ''),
    ),
  ]);
  t.is(rows.length, 11);
});

test('the parts are at the offsets of the page', (t) => {
  const parts = [...rowsWith(page, 'part', 'at'), ...rowsWith(page, 'part', 'at, in a grant of n GPUs')];
  const names: Readonly<Record<string, number>> = { n: 3, s: 5, c: 2 };
  /** What the page says of a part, as an expression. */
  const documented = (part: string) => {
    const row = parts.find((entry) => entry.part === part);
    const formula = row?.at ?? row?.['at, in a grant of n GPUs'] ?? '';
    return formula.replaceAll('×', '*').replace(/\b[nsc]\b/g, (name) => String(names[name]));
  };
  const places: readonly (readonly [part: string, place: string])[] = [
    ['GPU entry c', 'offsetof(struct cot_limits_page, gpus) + 2 * sizeof(struct cot_limits_page_gpu)'],
    [
      'feedback of slot s, GPU c, in a grant of n GPUs',
      'offsetof(struct cot_limits_page, feedback) + (5 * 3 + 2) * sizeof(struct cot_limits_page_feedback)',
    ],
    ['total of GPU c', 'sizeof(struct cot_ledger_header) + 2 * sizeof(struct cot_ledger_total)'],
    ['slot s', 'cot_ledger_slots_offset(3) + 5 * cot_slot_bytes(3)'],
    [
      'row of slot s, GPU c',
      'cot_ledger_slots_offset(3) + 5 * cot_slot_bytes(3) + sizeof(struct cot_slot) + 2 * sizeof(struct cot_slot_gpu)',
    ],
  ];
  t.true(page.includes('the order of GPU c at 64 + 256 × c') && page.includes('at 8256 + 64 × (s × n + c)'));
  t.deepEqual(
    evaluate(t, [
      '(char *)cot_lease_order_at(0, 2) - (char *)0',
      '(char *)cot_lease_row_at(0, 3, 5, 2) - (char *)0',
    ]).map(Number),
    [64 + 256 * 2, 8256 + 64 * (5 * 3 + 2)],
  );
  t.is(parts.length, places.length + 2, 'both headers are at 0');
  t.deepEqual(
    [
      ...evaluate(
        t,
        places.map(([part]) => documented(part)),
      ),
    ],
    [
      ...evaluate(
        t,
        places.map(([, place]) => place),
      ),
    ],
  );
});

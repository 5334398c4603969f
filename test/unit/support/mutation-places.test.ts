import test from 'ava';
import { placesIn, shuffled } from '../../mutations/places.ts';

const SOURCE = `/* a == b */
#define SAME(a, b) (a == b)
int f(int a) {
    /* a < 1 */
    if (!is_here(a) && a <= 1) return ABI_ERROR_INVALID_VALUE; /* a > 2 */
    puts("a == b \\" || c");
    return ABI_SUCCESS;
}
`;

test('code of functions is changed, one place at a time', (t) => {
  const places = placesIn('f.c', SOURCE);
  t.deepEqual(places.map(({ line, from, to }) => [line, from, to]).toSorted(), [
    [5, '!', ''],
    [5, '&&', '||'],
    [5, '<=', '>'],
    [5, 'ABI_ERROR_INVALID_VALUE', 'ABI_SUCCESS'],
  ]);
  const line = SOURCE.split('\n')[4] ?? '';
  t.is(places.find(({ from }) => from === '&&')?.changed, SOURCE.replace(line, line.replace('&&', '||')));
});

test('the same seed draws the same places, another one others', (t) => {
  const list = Array.from({ length: 50 }, (_, index) => index);
  t.deepEqual(shuffled(list, 3), shuffled(list, 3));
  t.notDeepEqual(shuffled(list, 3), shuffled(list, 4));
  t.deepEqual(
    shuffled(list, 3).toSorted((a, b) => a - b),
    list,
  );
});

// Live rules from an API server: at the start, at each change, and when the ConfigMap is wrong or gone.
import type { ServerResponse } from 'node:http';
import test, { type ExecutionContext } from 'ava';
import { rulesOf } from '../../../webhook/config.ts';
import { watchRules } from '../../../webhook/watch-rules.ts';
import { eventually } from '../../support/native/node.ts';
import { answerList, refuse, startApiServer, watchers } from '../../support/services/api-server.ts';
import { configured } from '../../unit/webhook/reviews.ts';

const PLACE = 'ConfigMap cotenant-system/rules';
const settings = { rules: { most: { gpu: 1 } } };
const configMap = (text: string, resourceVersion: string) => ({
  metadata: { name: 'rules', namespace: 'cotenant-system', resourceVersion },
  data: { 'rules.yaml': text },
});

async function start(t: ExecutionContext, first: readonly object[], mayRead: () => boolean = () => true) {
  const watched = watchers();
  const { config } = await startApiServer(t, ({ url, isWatch }, response: ServerResponse) => {
    t.is(url.pathname, '/api/v1/namespaces/cotenant-system/configmaps');
    t.is(url.searchParams.get('fieldSelector'), 'metadata.name=rules');
    if (!mayRead()) return refuse(response, 403, 'forbidden');
    return isWatch ? watched.add(response) : answerList(response, first);
  });
  const lines: string[] = [];
  const log = (level: string) => (line: string) => lines.push(`${level}: ${line}`);
  const logger = { info: log('info'), warn: log('warn'), error: log('error') };
  const configuration = configured(settings);
  const source = { namespace: 'cotenant-system', name: 'rules', settings, configuration };
  const starting = watchRules(config, source, logger);
  return { starting, watched, lines };
}

test('each right ConfigMap is in force at once, and a wrong one changes nothing', async (t) => {
  const { starting, watched, lines } = await start(t, [configMap('rules: {most: {gpu: 2}}', '5')]);
  const watch = await starting;
  const most = () => rulesOf(watch.configuration(), 'team').most.gpu;
  t.deepEqual([most(), watch.valid()], [2, true]);
  await eventually(() => watched.open.size > 0 || undefined, 'the watch');
  watched.send('MODIFIED', configMap('rules: {most: {gpu: 3}}', '6'));
  await eventually(() => most() === 3 || undefined, 'the next rules');
  watched.send('MODIFIED', configMap('rules: {most: {gpu: all}}', '7'));
  await eventually(() => !watch.valid() || undefined, 'the wrong rules');
  t.is(most(), 3);
  watched.send('MODIFIED', configMap('rules: {most: {gpu: 4}}', '8'));
  await eventually(() => most() === 4 || undefined, 'rules that are right again');
  t.true(watch.valid());
  watched.send('DELETED', configMap('rules: {most: {gpu: 4}}', '9'));
  await eventually(() => most() === 1 || undefined, 'the settings of the start');
  t.deepEqual(lines, [
    `info: ${PLACE}: its rules are in force (resourceVersion 5)`,
    `info: ${PLACE}: its rules are in force (resourceVersion 6)`,
    `error: ${PLACE}: not read, the rules before it stay in force: rules.most.gpu: "all" is not valid; write a whole number from 1 to 64`,
    `info: ${PLACE}: its rules are in force (resourceVersion 8)`,
    `info: ${PLACE}: is not there; the settings of --config are in force`,
  ]);
  t.is(watch.check(configMap('rules: {most: {gpu: 0}}', '10')).length, 1);
  t.is(watch.check(configMap('', '10')).length, 0);
  await watch.close();
});

test('with a wrong ConfigMap at the start the settings hold, and it is said', async (t) => {
  const { starting, lines } = await start(t, [configMap('rules: [', '5')]);
  const watch = await starting;
  t.deepEqual([rulesOf(watch.configuration(), 'team').most.gpu, watch.valid()], [1, false]);
  t.regex(
    lines.join('\n'),
    /^error: ConfigMap .*: not read, the settings of --config stay in force: data\["rules\.yaml"\]: is not YAML: /,
  );
  await watch.close();
});

test('it waits until it may read the ConfigMap, and says that it may not', async (t) => {
  let allowed = false;
  const { starting, lines } = await start(t, [], () => allowed);
  await eventually(() => lines[0], 'a warning');
  t.regex(lines[0] ?? '', /^warn: cannot read ConfigMap cotenant-system\/rules, and retries: .*forbidden/);
  allowed = true;
  const watch = await starting;
  t.deepEqual([rulesOf(watch.configuration(), 'team').most.gpu, watch.valid()], [1, true]);
  await watch.close();
});

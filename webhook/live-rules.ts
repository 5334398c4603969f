// Rules that administrators change while the webhook runs: a ConfigMap with `rules`, `namespaces` and `pools`, each in
// the place of the configuration's own. Pure; watch-rules.ts follows the ConfigMap.
import { parse as parseYaml } from 'yaml';
import { field, isObject, type JsonObject, objectAt } from '../src/common/json.ts';
import { type Checked, forbidden, invalid, missing, type Problem } from '../src/common/problem.ts';
import { attempt, err } from '../src/common/result.ts';
import { parseConfiguration, settledRulesOf, type WebhookConfiguration } from './config.ts';

/** The key of the ConfigMap's data. */
export const RULES_KEY = 'rules.yaml';
const SECTIONS = ['rules', 'namespaces', 'pools'];

/** The configuration with the ConfigMap's sections over `settings`, which are what the webhook was started with. */
export function readLiveRules(configMap: unknown, settings: JsonObject): Checked<WebhookConfiguration> {
  const data = objectAt(configMap, 'data');
  const text = field(data, RULES_KEY);
  const path = `data["${RULES_KEY}"]`;
  if (typeof text !== 'string') return err([missing(path, `write ${SECTIONS.join(', ')} there, as YAML`)]);
  const others = Object.keys({ ...data, ...objectAt(configMap, 'binaryData') }).filter((key) => key !== RULES_KEY);
  if (others.length > 0) return err([forbidden('data', others[0], 'is not read', `write all under ${RULES_KEY}`)]);
  const parsed = attempt(() => parseYaml(text) as unknown);
  if (!parsed.ok)
    return err([invalid(path, undefined, `is not YAML: ${parsed.error.split('\n')[0]?.replace(/:$/, '')}`, 'mend it')]);
  const live = parsed.value ?? {};
  if (!isObject(live)) return err([invalid(path, live, 'is not an object', `write ${SECTIONS.join(', ')}`)]);
  const unknown = Object.keys(live).filter((key) => !SECTIONS.includes(key));
  if (unknown.length > 0)
    return err(unknown.map((key) => invalid(key, live[key], 'is not read here', `write ${SECTIONS.join(', ')}`)));
  const read = parseConfiguration({ ...settings, ...live });
  if (!read.ok) return read;
  const base = parseConfiguration(settings);
  const problems = base.ok ? beyond(read.value, base.value) : base.error;
  return problems.length > 0 ? err(problems) : read;
}

/**
 * What the API server decides as well, by match conditions and policies that come with the settings: it would not send
 * pods of a dialect that is off in all of them, and its policy refuses SYS_PTRACE.
 */
function beyond(live: WebhookConfiguration, base: WebhookConfiguration): readonly Problem[] {
  const names = [undefined, ...new Set([...live.namespaces.keys(), ...base.namespaces.keys()])];
  const sent = new Set([base.rules, ...base.namespaces.values()].flatMap(({ dialects }) => dialects));
  const problems: Problem[] = [];
  for (const name of names) {
    const path = name === undefined ? 'rules' : `namespaces.${name}`;
    const inherited = name === undefined ? [] : live.rules.dialects;
    const { dialects, allowPtrace } = settledRulesOf(live, name);
    for (const dialect of dialects.filter((one) => !sent.has(one) && !inherited.includes(one))) {
      const right = 'switch it on in webhook.configuration of the chart, for one namespace at least';
      problems.push(forbidden(`${path}.dialects`, dialect, 'is off where the webhook is registered', right));
    }
    if (allowPtrace && !settledRulesOf(base, name).allowPtrace) {
      const right = 'set it in webhook.configuration of the chart';
      problems.push(forbidden(`${path}.allowPtrace`, true, "is decided by the chart's policies as well", right));
    }
  }
  return problems;
}

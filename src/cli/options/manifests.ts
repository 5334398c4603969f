// The options of commands that read manifests as the webhook would.
import { DEFAULT_CONFIGURATION, type WebhookConfiguration } from '../../../webhook/config.ts';
import { FOREIGN_DIALECT_NAMES } from '../../api/request.ts';
import type { JsonObject } from '../../common/json.ts';
import { type Options, type Parsed, text, texts, UsageError } from '../lib/command.ts';
import { documentsOf } from '../lib/manifests.ts';
import { readConfiguration } from '../lib/webhook-configuration.ts';

/** All dialects are on: `hami` reads `nvidia.com/gpu`. */
export const EVERY_DIALECT: WebhookConfiguration = {
  ...DEFAULT_CONFIGURATION,
  rules: { ...DEFAULT_CONFIGURATION.rules, dialects: [...FOREIGN_DIALECT_NAMES] },
};

export const MANIFEST_OPTIONS: Options = {
  file: {
    short: 'f',
    value: 'FILE',
    multiple: true,
    help: 'manifests in YAML or JSON, lists too, or a folder of them; - is standard input',
  },
  config: {
    short: 'c',
    value: 'FILE',
    help: "the webhook's settings, or the chart's values or ConfigMap (default all dialects are on)",
  },
};

type Manifests = { readonly documents: readonly JsonObject[]; readonly configuration: WebhookConfiguration };

export function readManifests(parsed: Parsed): Manifests {
  const files = texts(parsed, 'file');
  if (files.length === 0) throw new UsageError('want at least one -f FILE');
  const config = text(parsed, 'config');
  const configuration = config === undefined ? EVERY_DIALECT : readConfiguration(config);
  return { documents: files.flatMap(documentsOf), configuration };
}

// The table of errors is the one that all clients share.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { ACTIONS, actionAfter, LeaseTaken, markSent } from '../node_modules/lease-lock/src/errors.js'

const lines = readFileSync(new URL('errors.tsv', import.meta.url), 'utf8').split('\n').filter((line) => line && !line.startsWith('#'))
const table = Object.fromEntries(lines.map((line) => line.split('\t')))

test('each SQLSTATE has the action of the shared table', () => {
  assert.deepEqual(ACTIONS, Object.fromEntries(Object.entries(table).filter(([key]) => /^[0-9A-Z]{2,5}$/.test(key))))
})

test('what to do after errors of the driver', () => {
  const ofServer = (code) => Object.assign(new Error('no'), { severity: 'ERROR', code })
  assert.equal(actionAfter(new Error('connect ECONNREFUSED')), table['not connected'])
  assert.equal(actionAfter(markSent(new Error('Connection terminated unexpectedly'))), table['no answer'])
  assert.equal(actionAfter(new Error('timeout exceeded when trying to connect')), table['no connection in time'])
  assert.equal(actionAfter(new TypeError('mine')), table['any other'])
  assert.equal(actionAfter(new LeaseTaken('r', { reason: 'held' })), 'not again')
  assert.equal(actionAfter(ofServer('08006')), 'again')
  assert.equal(actionAfter(markSent(ofServer('08006'))), 'unknown')
  assert.equal(actionAfter(markSent(ofServer('57P03'))), 'again')
  assert.equal(actionAfter(markSent(ofServer('40003'))), 'unknown')
  assert.equal(actionAfter(markSent(ofServer('40P01'))), 'again')
  assert.equal(actionAfter(ofServer('22023')), table['any other'])
})

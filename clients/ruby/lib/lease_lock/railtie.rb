# frozen_string_literal: true

module LeaseLock
  # Loads what is for ActiveRecord when Rails loads that.
  class Railtie < Rails::Railtie
    initializer "lease_lock.active_record" do
      ActiveSupport.on_load(:active_record) { require "lease_lock/active_record" }
    end
  end
end
